"""One attempt to deliver a webhook: an HTTP request to addresses that were checked before."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpcore

from tasks.webhook import Target

CONNECT_S = 5.0  # to one address, before the next one is tried
FAILURES = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError)


@dataclass(frozen=True, slots=True)
class Answer:
    """retry_after_s: how long the receiver wants to be left alone."""

    status_code: int
    retry_after_s: float | None


class _Pinned(httpcore.AnyIOBackend):
    """Connects to the first of these addresses that answers, whatever the name in the request."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses

    async def connect_tcp(
        self,
        host: str,  # noqa: ARG002  what pinning is about
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        *others, last = self._addresses
        for address in others:
            with contextlib.suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await super().connect_tcp(address, port, timeout, local_address, socket_options)
        return await super().connect_tcp(last, port, timeout, local_address, socket_options)


async def post(
    target: Target, addresses: Sequence[str], body: bytes, headers: Mapping[str, str], tls: ssl.SSLContext
) -> Answer:
    """The head of the answer, whose body nobody needs and nobody reads. Raises one of FAILURES."""
    sent = {
        "Host": target.host_header,
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "User-Agent": "medusaq",
        "Connection": "close",
        **headers,
    }
    scheme, host = target.scheme.encode(), target.host.encode()
    async with httpcore.AsyncHTTPConnection(
        httpcore.Origin(scheme, host, target.port), ssl_context=tls, network_backend=_Pinned(addresses)
    ) as connection:
        request = httpcore.Request(
            "POST",
            httpcore.URL(scheme=scheme, host=host, port=target.port, target=target.path.encode()),
            headers=list(sent.items()),
            content=body,
            extensions={"timeout": {"connect": CONNECT_S}},
        )
        response = await connection.handle_async_request(request)
        after = next((value for name, value in response.headers if name.lower() == b"retry-after"), None)
        return Answer(response.status, _seconds(after))


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
