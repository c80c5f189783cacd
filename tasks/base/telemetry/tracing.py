"""The interface through which requests and jobs are traced, and an implementation that does nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from tasks.records.claim import Claim
from tasks.records.job import Status


class Answered(Protocol):
    """Told of a request's answer."""

    def __call__(self, route: str, status: int) -> None: ...


class Tracing(Protocol):
    """on: whether anything is traced."""

    on: bool

    def request(self, method: str, path: str, headers: Mapping[str, str]) -> Any:
        """A context around the work on an HTTP request, which gives an Answered."""

    def traceparent(self) -> str:
        """Of the request that is being worked on, for the record of a job; empty for none."""

    def job(
        self, claim: Claim, status: Status, result: Mapping[str, Any] | None, error: Mapping[str, Any] | None
    ) -> None:
        """Tell of a job that has ended here, with what is stored of it."""

    def close(self) -> None:
        """Send what is left."""


class Untraced(Tracing):
    """Does nothing, at no cost."""

    on = False

    @contextmanager
    def request(self, *_: object) -> Iterator[Answered]:
        yield _unheard

    def traceparent(self) -> str:
        return ""

    def job(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


def _unheard(route: str, status: int) -> None:
    pass


UNTRACED = Untraced()
