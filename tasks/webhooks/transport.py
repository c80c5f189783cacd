"""One attempt to deliver a webhook: an HTTP request to an address that was checked before.

The response is read with h11 itself, under limits that HTTP clients lack: of the bytes of its head, and of
the interim responses (1xx) before it, each of which takes time on the event loop that all deliveries share.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import h11
import httpcore

from tasks.base.errors import AnswerTooLong
from tasks.records.webhook import Target

CONNECT_S = 5.0  # to one address, and again for its TLS handshake, before the next one is tried
HEAD_BYTES = 16_384  # of the heads of all interim responses and the final one; common servers send under 8 KB
INTERIM_ANSWERS = 16  # before the final one; a server has reason for one or two
READ_BYTES = 4096
NO_CONNECTION = (httpcore.ConnectError, httpcore.ConnectTimeout)
FAILURES = (httpcore.NetworkError, httpcore.TimeoutException, AnswerTooLong, OSError)


@dataclass(frozen=True, slots=True)
class Answer:
    """retry_after_s: from the header Retry-After."""

    status_code: int
    retry_after_s: float | None


async def post(
    target: Target, address: str, body: bytes, headers: Mapping[str, str], tls: ssl.SSLContext
) -> Answer:
    """Send the request and return the head of the response. The response's body is not read.

    Raises FAILURES, of which NO_CONNECTION means that nothing was sent, and h11.ProtocolError. The caller
    must limit the time of the whole.
    """
    sent = {
        "Host": target.host_header,
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "User-Agent": "medusaq",
        "Connection": "close",
        **headers,
    }
    exchange = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
    request = h11.Request(method="POST", target=target.path, headers=list(sent.items()))
    message = b"".join(exchange.send(part) or b"" for part in (request, h11.Data(body), h11.EndOfMessage()))
    stream = await httpcore.AnyIOBackend().connect_tcp(address, target.port, timeout=CONNECT_S)
    try:
        if target.scheme == "https":
            stream = await stream.start_tls(tls, server_hostname=target.host, timeout=CONNECT_S)
        with contextlib.suppress(httpcore.WriteError):  # it may have responded before reading everything
            await stream.write(message)
        answer = await _final(exchange, stream)
    finally:
        await stream.aclose()
    after = next((value for name, value in answer.headers if name == b"retry-after"), None)
    return Answer(answer.status_code, _seconds(after))


async def _final(exchange: h11.Connection, stream: httpcore.AsyncNetworkStream) -> h11.Response:
    left, interim = HEAD_BYTES, 0
    while True:
        event = exchange.next_event()
        if isinstance(event, h11.Response):
            return event
        if isinstance(event, h11.InformationalResponse):
            interim += 1
            if interim > INTERIM_ANSWERS:
                raise AnswerTooLong(f"more than {INTERIM_ANSWERS} interim answers (1xx)")
            continue
        if not left:
            raise AnswerTooLong(f"the head of the answer has more than {HEAD_BYTES} bytes")
        data = await stream.read(min(left, READ_BYTES))
        left -= len(data)
        exchange.receive_data(data)


def _seconds(retry_after: bytes | None) -> float | None:
    """Seconds or a date, as RFC 9110 allows; None for anything else."""
    text = (retry_after or b"").decode("ascii", "replace").strip()
    if text.isdigit():
        return float(text)
    try:
        at = parsedate_to_datetime(text)
        return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    except (ValueError, OverflowError):
        return None
