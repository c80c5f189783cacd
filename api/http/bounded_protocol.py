"""HTTP as uvicorn speaks it through httptools, within the limits of api.http.connection_limits.

Neither uvicorn nor httptools bounds headers, pipelined requests, or the time that a client takes.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, ClassVar

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from api.http.connection_limits import REFUSED, Connections, Limits
from api.http.error_responses import respond
from api.http.errors import (
    TABLE,
    ApiError,
    HeadersTooLarge,
    MalformedRequest,
    RequestTimeout,
    TargetTooLong,
    TooManyConnections,
)
from api.http.headers import API_HEADERS

log = logging.getLogger("uvicorn.error")

PIECE = 16 * 1024  # bytes parsed between two checks: so much more than a limit may be held
FRAMING = 8  # bytes of chunk sizes for each byte of a body: chunks of one byte have five
FIELD_FRAMING = 4  # bytes: ": " and the end of the line
SHOWN = 200  # bytes of a path in the log


class _PipelineFull(Exception):
    """More requests wait than Limits.pipelined."""


class BoundedHttp(HttpToolsProtocol):
    """One connection."""

    limits: ClassVar[Limits] = Limits()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._open = Connections.of(server_state, self.limits)
        self._running: RequestResponseCycle | None = None  # what is answered; self.cycle is what came last
        self._error: ApiError | None = None  # of a callback, which can only raise to the parser
        self._fields = 0  # bytes of the headers that are whole
        self._in_body = False  # headers are complete, the message is not
        self._body = 0  # bytes of the message's body
        self._overhead = 0  # bytes of the message, or before it, that are no body
        now = self.loop.time()
        self._since = now  # of a head its first byte, else the end of the last answer
        self._period = (now, 0)  # of a body: when it began, and the bytes that had come
        self._unread: tuple[float, int] | None = None  # since when answers wait for the client, their bytes
        self._left = False  # the client closed its side
        self._deaf = False  # what still comes is thrown away
        self._refused_at: float | None = None
        self._closed_at: float | None = None

    @property
    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._open.add(self, self.client[0] if self.client else None, self.loop):
            self._refuse(
                TooManyConnections(f"the gateway has no room for more than {self._open.most} connections")
            )

    def eof_received(self) -> None:
        self._left = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.closed(self)
        if self._busy and not self._deaf and (self._left or exc is not None):
            scope = self.cycle.scope
            path = scope.get("raw_path", b"")[:SHOWN].decode("ascii", "replace")
            log.info("the client closed the connection before the end of %s %s", scope["method"], path)
        if self._running is not None:  # uvicorn tells the last one alone
            self._running.disconnected = True
            self._running.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    # Bytes as they come

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._unset_keepalive_if_required()
        if not (self._in_body or self._overhead):
            self._since = self.loop.time()
        for start in range(0, len(data), PIECE):
            self._feed(data if len(data) <= PIECE else memoryview(data)[start : start + PIECE])
            if self._deaf or self.transport.is_closing():
                return

    def _feed(self, piece: bytes | memoryview) -> None:
        self._overhead += len(piece)
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:  # ignored, as RFC 9110 allows; a body would not be recognised
            self._finish()
        except httptools.HttpParserError as failed:
            if isinstance(failed.__context__, _PipelineFull):
                self._finish()
            else:
                self._refuse(self._error or MalformedRequest("this is no valid HTTP request"))
        else:
            self._overhead = max(self._overhead, 0)
            if self._overhead > self.limits.head_bytes + FRAMING * self._body:
                self._refuse(self._too_large())

    # What the parser finds in them

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._fields = 0
        if not self._overhead:  # in the piece that ended the last message
            self._overhead = 1
            self._since = self.loop.time()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self.limits.target_bytes:
            self._error = TargetTooLong(
                f"the path and query are over the limit of {self.limits.target_bytes} bytes"
            )
            raise self._error

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:  # a trailer
            return
        super().on_header(name, value)
        self._fields += len(name) + len(value) + FIELD_FRAMING
        if len(self.headers) > self.limits.headers:
            self._error = HeadersTooLarge(f"there are more than {self.limits.headers} headers")
        elif len(self.url) + self._fields > self.limits.head_bytes:
            self._error = self._too_large()
        if self._error is not None:
            raise self._error

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= self.limits.pipelined:
            raise _PipelineFull
        super().on_headers_complete()
        self._in_body = True
        self._period = (self.loop.time(), 0)
        self._open.busy(self)

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        self._overhead -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_body = False
        self._body = self._overhead = 0

    # Answers

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._since = self.loop.time()
        if not self._busy:
            self._open.idle(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = (self.loop.time(), self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread = None

    # Limits that are reached

    def _too_large(self) -> HeadersTooLarge:
        most = self.limits.head_bytes
        return HeadersTooLarge(f"the request line and the headers are over the limit of {most} bytes")

    def _finish(self) -> None:
        """Answer what is whole, and close."""
        self._deaf = True
        self.cycle.keep_alive = False

    def _refuse(self, error: ApiError) -> None:
        """Answer what is coming in with this error, and close; requests before it are still answered."""
        REFUSED.labels(TABLE[type(error)].code).inc()
        if self._busy and not self._in_body:
            self._finish()
            return
        self._deaf = True
        if self._in_body:  # of a request that is known already
            started = self.cycle.response_started
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if started or self.pipeline:
                self.transport.abort()
                return
        response = respond(error)
        content = [STATUS_LINE[response.status_code]]
        own = [(name.lower().encode(), value.encode()) for name, value in API_HEADERS.items()]
        for name, value in (*self.server_state.default_headers, *response.raw_headers, *own):
            content += [name, b": ", value, b"\r\n"]
        self.transport.write(b"".join([*content, b"connection: close\r\n\r\n", response.body]))
        if self._open.may_linger(self):
            self._refused_at = self.loop.time()
            self.transport.write_eof()
            self.flow.resume_reading()
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._refuse(MalformedRequest(msg))

    def evict(self) -> None:
        REFUSED.labels("evicted").inc()
        self._deaf = True
        self.transport.abort()

    def check(self, now: float) -> None:
        if self.transport.is_closing():
            self._closed_at = self._closed_at or now
            if now - self._closed_at > self.limits.transfer_s:
                self.transport.abort()
        elif self._refused_at is not None:
            if now - self._refused_at > self.limits.linger_s:
                self.transport.abort()
        elif self._unread is not None and self._is_unread(now, *self._unread):
            REFUSED.labels("answer_unread").inc()
            self._deaf = True
            self.transport.abort()
        elif self._in_body:
            self._check_body(now)
        elif not self._busy:
            self._check_head(now)

    def _is_unread(self, now: float, since: float, waiting: int) -> bool:
        if now - since <= self.limits.transfer_s:
            return False
        left = self.transport.get_write_buffer_size()
        self._unread = (now, left)
        return waiting - left < self.limits.transfer_bytes

    def _check_body(self, now: float) -> None:
        began, before = self._period
        if not self._busy:
            if now - max(self._since, began) > self.limits.discard_s:
                self.transport.close()
        elif self.flow.read_paused or self.cycle.waiting_for_100_continue:  # it is we who let it wait
            self._period = (now, self._body)
        elif now - began > self.limits.transfer_s:
            if self._body - before < self.limits.transfer_bytes:
                least, period = self.limits.transfer_bytes, self.limits.transfer_s
                self._refuse(RequestTimeout(f"the body came slower than {least} bytes in {period:g} s"))
            self._period = (now, self._body)

    def _check_head(self, now: float) -> None:
        if self._overhead:
            if now - self._since > self.limits.head_s:
                self._refuse(RequestTimeout(f"the headers did not come within {self.limits.head_s:g} s"))
            return
        longest = self.timeout_keep_alive if self.cycle is not None else self.limits.head_s
        if now - self._since > longest:
            self.transport.close()
