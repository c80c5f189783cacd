"""Rejects a body over the limit: by its Content-Length before reading, and by counting while reading."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.error_responses import respond
from api.http.errors import BodyTooLarge


class BodyLimit:
    """ASGI middleware around the whole application. other: exceptions by method and path, such as uploads."""

    def __init__(self, app: ASGIApp, max_bytes: int, other: Mapping[tuple[str, str], int]) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._other = other

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._other.get((scope["method"], scope["path"]), self._max_bytes)
        error = BodyTooLarge(f"the body is over the limit of {most} bytes")
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if int(declared) > most:  # the server has checked that it is a number
            await respond(error)(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > most:
                raise error
            return message

        await self._app(scope, counted, send)
