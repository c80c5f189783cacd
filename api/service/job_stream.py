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
from api.service.job_events import POLL_S
from tasks.base.errors import StoreUnavailable
from tasks.records.job import Job, Status


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
    with gateway.job_events.inbox(job.id) as inbox:
        refresh = behind = True
        while True:
            if refresh:
                # The last known record serves until Redis is back.
                with contextlib.suppress(StoreUnavailable):
                    job, text = await run_in_threadpool(_read, gateway, job, behind)
                    if missing := position.missing(text, job):
                        yield missing
                if sent != (job.status, job.attempts):  # a short "queued" between two attempts may be missed
                    sent = (job.status, job.attempts)
                    yield job
                if job.terminal:
                    return
            try:
                part = await key.unless_revoked(asyncio.wait_for(inbox.get(), POLL_S))
            except TimeoutError:
                part = None
            # Text that is read has no drafts: what is on its way is waited for, unless a part was missed.
            behind = part is not None and position.is_beyond(part)
            refresh = part is None or behind
            if part is not None and not refresh and (new := position.new_in(part)):
                yield new


def _read(gateway: Gateway, job: Job, behind: bool) -> tuple[Job, str]:
    """The current record and, for who is behind or at the end, the text generated so far."""
    text = gateway.store.text_so_far(job.id) if behind else ""
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
