"""HTTP as cheap as a hostile client can have it: requests made once, answers read no further than needed."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

HEAD_END = b"\r\n\r\n"
MOST_HEAD = 1 << 20
ANSWER_S = 60.0


@dataclass
class Peer:
    """The gateway as a hostile client sees it. answers: by class of status, '2xx' to '5xx', and 'closed'."""

    host: str
    port: int
    key: str
    answers: Counter[str] = field(default_factory=Counter)

    def head(self, method: str, path: str, *lines: str) -> bytes:
        """A request's head without its end."""
        first = f"{method} {path} HTTP/1.1"
        given = (first, f"Host: {self.host}:{self.port}", f"Authorization: Bearer {self.key}", *lines)
        return "\r\n".join(given).encode() + b"\r\n"

    def request(self, method: str, path: str, body: object = None, *lines: str) -> bytes:
        """The whole of it; body: bytes, or what becomes JSON."""
        sent = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        length = f"Content-Length: {len(sent)}"
        kind = [] if body is None or isinstance(body, bytes) else ["Content-Type: application/json"]
        return self.head(method, path, length, *kind, *lines) + b"\r\n" + sent

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=MOST_HEAD)
        try:
            yield Connection(self, reader, writer)
        finally:
            writer.transport.abort()

    async def once(self, request: bytes) -> Any:
        """JSON of the answer to one request on a connection of its own; None where there is none."""
        async with self.connected() as connection:
            return await connection.ask(request)


@dataclass
class Connection:
    """One connection, kept alive for as long as both sides like."""

    peer: Peer
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, request: bytes) -> Any:
        """The answer as JSON, None where it is none; raises OSError when the connection ends."""
        async with asyncio.timeout(ANSWER_S):
            self.writer.write(request)
            await self.writer.drain()
            return await self.answer()

    async def answer(self) -> Any:
        try:
            head = await self.reader.readuntil(HEAD_END)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            self.peer.answers["closed"] += 1
            raise ConnectionError from None
        self.peer.answers[f"{chr(head[9])}xx"] += 1
        fields = dict(one.lower().split(b": ", 1) for one in head.split(b"\r\n")[1:] if b": " in one)
        length = fields.get(b"content-length")
        if length is None:  # in chunks, which nobody here reads
            raise ConnectionError
        body = await self.reader.readexactly(int(length))
        if fields.get(b"connection") == b"close":
            raise ConnectionError
        return json.loads(body) if body.startswith((b"{", b"[")) else None


class Pace:
    """So many a second over all tasks that wait for a turn, and no burst after a pause."""

    def __init__(self, per_s: float) -> None:
        self._step, self._next = 1 / per_s, 0.0

    async def turn(self) -> None:
        self._next = max(self._next + self._step, time.monotonic())
        await asyncio.sleep(self._next - time.monotonic())
