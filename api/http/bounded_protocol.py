"""uvicorn's httptools protocol with the limits of api.http.connection_limits.

Neither uvicorn nor httptools limits headers, pipelined requests, or the time that a client takes.
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

from api.http.connection_limits import REFUSED, ConnectionRegistry, Limits
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
from api.http.headers import API_HEADERS, REQUEST_ID, new_request_id

log = logging.getLogger("uvicorn.error")

PARSE_BYTES = 16 * 1024  # parsed between two checks of the limits, which can be exceeded by this much
MAX_FRAMING_RATIO = 8  # bytes of chunk framing per byte of a body; one-byte chunks need five
FIELD_OVERHEAD = 4  # bytes: ": " and the end of the line
LOGGED_PATH_BYTES = 200


class _PipelineFull(Exception):
    """The connection has more than Limits.pipelined waiting requests."""


class BoundedHttp(HttpToolsProtocol):
    """One client connection."""

    limits: ClassVar[Limits] = Limits()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._registry = ConnectionRegistry.of(server_state, self.limits)
        # The request that is being answered; self.cycle is the last one received.
        self._answered_cycle: RequestResponseCycle | None = None
        self._error: ApiError | None = None  # raised in a parser callback, which httptools wraps
        self._header_bytes = 0  # bytes of the complete headers
        self._in_body = False  # headers are complete, the message is not
        self._body_bytes = 0  # bytes of the message's body
        self._framing_bytes = 0  # bytes of the message that are not its body
        now = self.loop.time()
        self._since = now  # first byte of the current request head, or end of the last response
        self._period = (now, 0)  # start of the current transfer period, and body bytes received by then
        self._write_stall: tuple[float, int] | None = None  # (start, buffered bytes)
        self._client_closed = False  # the client half-closed the connection
        self._ignoring_input = False  # further input is discarded
        self._rejected_at: float | None = None
        self._closed_at: float | None = None

    @property
    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._registry.add(self, self.client[0] if self.client else None, self.loop):
            self._reject(
                TooManyConnections(
                    f"the gateway takes at most {self._registry.max_connections} connections; try again later"
                )
            )

    def eof_received(self) -> None:
        self._client_closed = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._registry.closed(self)
        if self._busy and not self._ignoring_input and (self._client_closed or exc is not None):
            scope = self.cycle.scope
            path = scope.get("raw_path", b"")[:LOGGED_PATH_BYTES].decode("ascii", "replace")
            log.info("the client closed the connection before the end of %s %s", scope["method"], path)
        if self._answered_cycle is not None:  # uvicorn notifies only the last cycle
            self._answered_cycle.disconnected = True
            self._answered_cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    # Input

    def data_received(self, data: bytes) -> None:
        if self._ignoring_input:
            return
        self._unset_keepalive_if_required()
        if not (self._in_body or self._framing_bytes):
            self._since = self.loop.time()
        for start in range(0, len(data), PARSE_BYTES):
            self._feed(data if len(data) <= PARSE_BYTES else memoryview(data)[start : start + PARSE_BYTES])
            if self._ignoring_input or self.transport.is_closing():
                return

    def _feed(self, data: bytes | memoryview) -> None:
        self._framing_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # ignored, as RFC 9110 allows; a body could not be parsed
            self._finish()
        except httptools.HttpParserError as failed:
            if isinstance(failed.__context__, _PipelineFull):
                self._finish()
            else:
                self._reject(self._error or MalformedRequest("this is not a valid HTTP request"))
        else:
            self._framing_bytes = max(self._framing_bytes, 0)
            if self._framing_bytes > self.limits.head_bytes + MAX_FRAMING_RATIO * self._body_bytes:
                self._reject(self._too_large())

    # Parser callbacks

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        if not self._framing_bytes:  # it began in the same read that ended the last message
            self._framing_bytes = 1
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
        self._header_bytes += len(name) + len(value) + FIELD_OVERHEAD
        if len(self.headers) > self.limits.headers:
            self._error = HeadersTooLarge(f"the request has more than {self.limits.headers} headers")
        elif len(self.url) + self._header_bytes > self.limits.head_bytes:
            self._error = self._too_large()
        if self._error is not None:
            raise self._error

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= self.limits.pipelined:
            raise _PipelineFull
        super().on_headers_complete()
        self._in_body = True
        self._period = (self.loop.time(), 0)
        self._registry.busy(self)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._framing_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_body = False
        self._body_bytes = self._framing_bytes = 0

    # Responses

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered_cycle = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._since = self.loop.time()
        if not self._busy:
            self._registry.idle(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_stall = (self.loop.time(), self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._write_stall = None

    # Limits

    def _too_large(self) -> HeadersTooLarge:
        limit = self.limits.head_bytes
        return HeadersTooLarge(f"the request line and the headers are over the limit of {limit} bytes")

    def _finish(self) -> None:
        """Answer the complete requests, then close."""
        self._ignoring_input = True
        self.cycle.keep_alive = False

    def _reject(self, error: ApiError) -> None:
        """Answer the current request with this error, then close; earlier requests are still answered."""
        REFUSED.labels(TABLE[type(error)].code).inc()
        if self._busy and not self._in_body:
            self._finish()
            return
        self._ignoring_input = True
        if self._in_body:  # the application may already be handling the request
            started = self.cycle.response_started
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if started or self.pipeline:
                self.transport.abort()
                return
        response = respond(error)
        content = [STATUS_LINE[response.status_code]]
        common = {**API_HEADERS, REQUEST_ID: new_request_id()}
        api_headers = [(name.lower().encode(), value.encode()) for name, value in common.items()]
        for name, value in (*self.server_state.default_headers, *response.raw_headers, *api_headers):
            content += [name, b": ", value, b"\r\n"]
        self.transport.write(b"".join([*content, b"connection: close\r\n\r\n", response.body]))
        if self._registry.may_linger(self):
            self._rejected_at = self.loop.time()
            self.transport.write_eof()
            self.flow.resume_reading()
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._reject(MalformedRequest(msg))

    def evict(self) -> None:
        REFUSED.labels("evicted").inc()
        self._ignoring_input = True
        self.transport.abort()

    def check(self, now: float) -> None:
        if self.transport.is_closing():
            self._closed_at = self._closed_at or now
            if now - self._closed_at > self.limits.transfer_s:
                self.transport.abort()
        elif self._rejected_at is not None:
            if now - self._rejected_at > self.limits.linger_s:
                self.transport.abort()
        elif self._write_stall is not None and self._is_stalled(now, *self._write_stall):
            REFUSED.labels("answer_unread").inc()
            self._ignoring_input = True
            self.transport.abort()
        elif self._in_body:
            self._check_body(now)
        elif not self._busy:
            self._check_head(now)

    def _is_stalled(self, now: float, since: float, waiting: int) -> bool:
        if now - since <= self.limits.transfer_s:
            return False
        left = self.transport.get_write_buffer_size()
        self._write_stall = (now, left)
        return waiting - left < self.limits.transfer_bytes

    def _check_body(self, now: float) -> None:
        began, before = self._period
        if not self._busy:
            if now - max(self._since, began) > self.limits.discard_s:
                self.transport.close()
        elif self.flow.read_paused or self.cycle.waiting_for_100_continue:  # this server paused it
            self._period = (now, self._body_bytes)
        elif now - began > self.limits.transfer_s:
            if self._body_bytes - before < self.limits.transfer_bytes:
                least, period = self.limits.transfer_bytes, self.limits.transfer_s
                self._reject(RequestTimeout(f"the body arrived slower than {least} bytes in {period:g} s"))
            self._period = (now, self._body_bytes)

    def _check_head(self, now: float) -> None:
        if self._framing_bytes:
            if now - self._since > self.limits.head_s:
                self._reject(RequestTimeout(f"the headers did not arrive within {self.limits.head_s:g} s"))
            return
        longest = self.timeout_keep_alive if self.cycle is not None else self.limits.head_s
        if now - self._since > longest:
            self.transport.close()
