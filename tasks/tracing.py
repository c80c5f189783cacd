"""Traces of a job's way, sent by OpenTelemetry when OTEL_* variables ask for it; else nothing is imported."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from tasks.claim import Claim
from tasks.job import Status

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
log = logging.getLogger(__name__)


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


def configured() -> bool:
    """Whether somebody is named to send traces to, and nothing says not to."""
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    none = os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp"
    return any(os.environ.get(name) for name in ENDPOINTS) and not off and not none


def begin(service: str) -> Tracing:
    """For this process. What keeps traces from being sent is a line in the log, and keeps nothing else."""
    if not configured():
        return UNTRACED
    protocol = next(filter(None, map(os.environ.get, PROTOCOLS)), "http/protobuf")
    if protocol != "http/protobuf":
        log.warning("no traces are sent: %s is asked for, and only http/protobuf is spoken", protocol)
        return UNTRACED
    try:
        from tasks.spans import Traced

        return Traced(service)
    except ImportError as error:
        log.warning("no traces are sent: %s is missing: pip install 'medusaq[tracing]'", error.name)
    except Exception as error:  # OpenTelemetry's own checks raise whatever they meet
        log.warning("no traces are sent: OTEL_* is refused: %s", str(error).partition("\n")[0])
    return UNTRACED
