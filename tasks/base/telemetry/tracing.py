"""The interface that traces requests and jobs, and an implementation that does nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from tasks.records.claim import Claim
from tasks.records.job import Status
from tasks.records.window import WindowClaim


class Answered(Protocol):
    """Callback that receives the response's status and the request's route."""

    def __call__(self, route: str, status: int) -> None: ...


class Tracing(Protocol):
    """on: whether spans are sent."""

    on: bool

    def request(self, method: str, path: str, headers: Mapping[str, str]) -> Any:
        """Context manager around the handling of an HTTP request; yields an Answered."""

    def traceparent(self) -> str:
        """W3C trace context of the current request, for the record of a job; "" if there is none."""

    def job(
        self, claim: Claim, status: Status, result: Mapping[str, Any] | None, error: Mapping[str, Any] | None
    ) -> None:
        """Trace a job that has ended in this process. result, error: as stored."""

    def window(self, claim: WindowClaim, count: int, statuses: Mapping[str, int], output_tokens: int) -> None:
        """Trace a window whose first `count` lines have ended; others were handed back.

        statuses: how many lines ended in each.
        """

    def close(self) -> None:
        """Send the remaining spans."""


class Untraced(Tracing):
    """Does nothing."""

    on = False

    @contextmanager
    def request(self, *_: object) -> Iterator[Answered]:
        yield _ignore_answer

    def traceparent(self) -> str:
        return ""

    def job(self, *_: object) -> None:
        pass

    def window(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


def _ignore_answer(route: str, status: int) -> None:
    pass


UNTRACED = Untraced()
