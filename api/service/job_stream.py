"""Streams one job: its status changes, its text without gaps and in order, and its final record."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from api.requests.open_requests import OpenKey
from api.requests.threads import run_in_threadpool
from api.service.dependencies import Gateway
from api.service.job_events import MISSED, POLL_S, Inbox, Update
from tasks.base.errors import StoreUnavailable
from tasks.records.job import Job, Status

END_S = 0.5  # longest wait for the parts of a job that has ended


@dataclass(frozen=True, slots=True)
class Text:
    """New text of the answer.

    logprobs: those of its tokens, in the format of a job's result. drafts: the parts of this text that come
    from draft tokens, each with its start and end in characters and its source; text that was missed and read
    from the record has none.
    """

    text: str
    logprobs: tuple[dict[str, Any], ...] = ()
    drafts: tuple[tuple[int, int, str], ...] = ()

    def drafts_json(self) -> list[dict[str, Any]]:
        """As the events show them."""
        return [{"start": start, "end": end, "source": source} for start, end, source in self.drafts]


async def follow(gateway: Gateway, job: Job, key: OpenKey) -> AsyncGenerator[Text | Job, None]:
    """Yield the record now and at each new status or attempt, and text in between. Ends with the last one.

    The joined texts equal the result's text: missing parts are read from the record, and after a restart
    of the job no text is repeated. Raises JobNotFound, and BadKey when the caller's key is revoked.
    """
    position = _Position()
    sent: tuple[Status, int] | None = None
    update: Update = MISSED
    with gateway.job_events.inbox(job.id) as inbox:
        while True:
            if isinstance(update, dict) and not position.is_beyond(update):
                if new := position.new_in(update):
                    yield new
            else:
                read_text = not isinstance(update, Status)
                # The last known record serves until Redis is back.
                with contextlib.suppress(StoreUnavailable):
                    job, text = await run_in_threadpool(_read, gateway, job, read_text)
                    if job.terminal and sent is not None and update != job.status:
                        await _until_end(inbox)
                    for part in inbox.parts():  # it has the drafts, which text that is read has not
                        if not position.is_beyond(part) and (new := position.new_in(part)):
                            yield new
                    if missing := position.missing(text, job):
                        yield missing
                if sent != (job.status, job.attempts):  # a short "queued" between two attempts may be missed
                    sent = (job.status, job.attempts)
                    yield job
                if job.terminal:
                    return
            try:
                update = await key.unless_revoked(asyncio.wait_for(inbox.get(), POLL_S))
            except TimeoutError:
                update = MISSED


async def _until_end(inbox: Inbox) -> None:
    """Let the last parts arrive of a job whose record says that it has ended."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            while not inbox.ended:
                await inbox.arrived()


def _read(gateway: Gateway, job: Job, read_text: bool) -> tuple[Job, str]:
    """The current record, and the text so far: at the job's end, and where read_text asks for it."""
    text = gateway.store.text_so_far(job.id) if read_text else ""
    fresh = gateway.store.refresh(job)
    return fresh, (fresh.result or {}).get("text", "") if fresh.terminal else text


class _Position:
    """Number of characters and tokens that were already yielded."""

    def __init__(self) -> None:
        self._characters = 0
        self._tokens = 0

    def is_beyond(self, part: dict[str, Any]) -> bool:
        """Whether text between the position and this part is missing."""
        return bool(part["at"] > self._characters)

    def new_in(self, part: dict[str, Any]) -> Text | None:
        logprobs, drafts = part.get("logprobs", ()), part.get("drafts", ())
        return self._take(part["text"], part["at"], logprobs, part.get("token", 0), drafts)

    def missing(self, text: str, job: Job) -> Text | None:
        """The rest of the whole text after the position."""
        logprobs = (job.result or {}).get("logprobs") or ()
        return self._take(text, 0, logprobs, 0)

    def _take(self, text: str, at: int, logprobs: Any, token: int, drafts: Any = ()) -> Text | None:
        known = self._characters - at
        new = text[known:]
        # Logprobs after a gap are held back until the end, to keep their order.
        tokens = tuple(logprobs[self._tokens - token :]) if token <= self._tokens else ()
        self._characters += len(new)
        self._tokens += len(tokens)
        spans = tuple(
            (max(start, known) - known, end - known, name) for start, end, name in drafts if end > known
        )
        return Text(new, tokens, spans) if new or tokens else None
