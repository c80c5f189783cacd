"""An OpenTelemetry span around each HTTP request, if tracing is configured."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.middleware.metrics import route_of
from tasks.base.telemetry.tracing import Tracing

UNTRACED = {"/healthz", "/readyz", "/metrics"}  # polled all the time


class HttpTracing:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UNTRACED:
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        with self._tracing.request(scope["method"], scope["path"], headers) as record_response:

            async def recording_send(message: Message) -> None:
                if message["type"] == "http.response.start":
                    record_response(route_of(scope), message["status"])
                await send(message)

            await self._app(scope, receive, recording_send)
