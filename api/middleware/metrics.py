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
    "From a request's arrival to the start of its response, including the wait of Prefer: wait=N",
    ["method", "route"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60),
    registry=REGISTRY,
)
METHODS = {"GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH"}
UNKNOWN = "other"  # unknown methods and paths: clients must not be able to create labels


class HttpMetrics:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        answered = False

        def record(status: int) -> None:
            nonlocal answered
            answered = True
            method, route = _method(scope), route_of(scope)
            REQUESTS.labels(method, route, str(status)).inc()
            SECONDS.labels(method, route).observe(time.perf_counter() - began)

        async def recording_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                record(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, recording_send)
        finally:
            if not answered:  # the outer error handler answers with 500
                record(500)


def route_of(scope: Scope) -> str:
    """The path template of the matched route, or UNKNOWN before routing."""
    return str(getattr(scope.get("route"), "path", UNKNOWN))


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in METHODS else UNKNOWN
