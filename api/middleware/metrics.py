"""Counts and times the HTTP requests of this gateway, by route and status."""

from __future__ import annotations

import time

from prometheus_client import Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tasks.base.telemetry.metrics import REGISTRY

REQUESTS = Counter(
    "medusaq_http_requests", "Requests answered", ["method", "route", "status"], registry=REGISTRY
)
SECONDS = Histogram(
    "medusaq_http_request_seconds",
    "From a request's arrival to the beginning of its answer; waiting with Prefer: wait=N counts",
    ["method", "route"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60),
    registry=REGISTRY,
)
METHODS = {"GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH"}
UNKNOWN = "other"  # methods and paths that nobody serves: the caller must not choose labels


class HttpFigures:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        answered = False

        def note(status: int) -> None:
            nonlocal answered
            answered = True
            method, route = _method(scope), route_of(scope)
            REQUESTS.labels(method, route, str(status)).inc()
            SECONDS.labels(method, route).observe(time.perf_counter() - began)

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                note(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            if not answered:  # the layer above will
                note(500)


def route_of(scope: Scope) -> str:
    """The path as it was declared, known once the request was routed."""
    return str(getattr(scope.get("route"), "path", UNKNOWN))


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in METHODS else UNKNOWN
