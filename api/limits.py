"""Refuses a body over the limit: by its declared length before reading, by counting while reading."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.error_handlers import respond
from api.errors import BodyTooLarge


class BodyLimit:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if int(declared) > self._max_bytes:  # the server has checked that it is a number
            await respond(self._error(), retry_after_s=0)(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._max_bytes:
                raise self._error()
            return message

        await self._app(scope, counted, send)

    def _error(self) -> BodyTooLarge:
        return BodyTooLarge(f"the body is over the limit of {self._max_bytes} bytes")
