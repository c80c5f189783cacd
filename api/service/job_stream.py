"""One job as it happens: each change of its status and its text, whole and in order, then its end."""

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
from tasks.records.job import Job


@dataclass(frozen=True, slots=True)
class Text:
    """A further piece of the answer. logprobs: of the tokens in it, as a result has them."""

    text: str
    logprobs: tuple[dict[str, Any], ...] = ()


async def follow(gateway: Gateway, job: Job, key: OpenKey) -> AsyncGenerator[Text | Job, None]:
    """The record now and whenever its status changes; between these the text. Ends with the terminal record.

    The texts joined are the result's text, whatever was lost on the way: what is missing comes from the
    record. A further attempt begins anew, and nothing is given twice. Raises JobNotFound, and BadKey
    when the key of whoever listens is revoked.
    """
    place = _Place()
    shown: Job | None = None
    with gateway.waiter.inbox(job.id) as inbox:
        look = True
        while True:
            if look:
                with contextlib.suppress(StoreUnavailable):  # the record last seen, until Redis is back
                    job, so_far = await run_in_threadpool(_look, gateway, job)
                    if rest := place.rest(so_far, job):
                        yield rest
                if shown is None or shown.status is not job.status:
                    shown = job
                    yield job
                if job.terminal:
                    return
            try:
                part = await key.unless_revoked(asyncio.wait_for(inbox.get(), POLL_S))
            except TimeoutError:
                part = None
            look = part is None or place.is_beyond(part)
            if part is not None and not look and (new := place.new_in(part)):
                yield new


def _look(gateway: Gateway, job: Job) -> tuple[Job, str]:
    """The record and the text so far."""
    so_far = gateway.store.text_so_far(job.id)
    fresh = gateway.store.refresh(job)
    return fresh, (fresh.result or {}).get("text", "") if fresh.terminal else so_far


class _Place:
    """How far a listener has come: characters and tokens that it was given."""

    def __init__(self) -> None:
        self._characters = 0
        self._tokens = 0

    def is_beyond(self, part: dict[str, Any]) -> bool:
        """Whether something between is missing."""
        return bool(part["at"] > self._characters)

    def new_in(self, part: dict[str, Any]) -> Text | None:
        return self._take(part["text"], part["at"], part.get("logprobs", ()), part.get("token", 0))

    def rest(self, text: str, job: Job) -> Text | None:
        """What the whole text has beyond this place."""
        logprobs = (job.result or {}).get("logprobs") or ()
        return self._take(text, 0, logprobs, 0)

    def _take(self, text: str, at: int, logprobs: Any, token: int) -> Text | None:
        new = text[self._characters - at :]
        # Tokens that were missed come with the end: their order counts more than their moment.
        tokens = tuple(logprobs[self._tokens - token :]) if token <= self._tokens else ()
        self._characters += len(new)
        self._tokens += len(tokens)
        return Text(new, tokens) if new or tokens else None
