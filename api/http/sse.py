"""Server-sent events: the response, and the encoding of one event."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from common.json_text import compact

PING_S = 15  # a comment after this much silence keeps proxies from closing the connection
SEPARATOR = "\n"


class EventStream(EventSourceResponse):
    """Sends encoded events, with ping comments during pauses.

    at_end is called when the response ends, also if the client closes the connection.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        at_end: Callable[[], None] = lambda: None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(events, headers=headers, ping=PING_S, sep=SEPARATOR)
        self._at_end = at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._at_end()


async def resumed(first: bytes, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The events from the first on, which was awaited before the response began."""
    yield first
    async for event in events:
        yield event


def encoded(data: Mapping[str, Any] | str, event: str | None = None) -> bytes:
    """Encode one event; an object becomes one line of JSON."""
    text = data if isinstance(data, str) else compact(data)
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {text}\n\n".encode()
