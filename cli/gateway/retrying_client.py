"""An HTTP client with retries, which survives pauses and restarts of the gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from cli.base.errors import GatewayUnreachable
from cli.gateway.client import (
    CONNECT_TIMEOUT_S,
    READ_MARGIN_S,
    TRANSFER_TIMEOUT_S,
    answer,
    own_key,
    proxied,
    reason,
)

FIRST_BACKOFF_S = 0.25
MAX_BACKOFF_S = 8.0
FIRST_CONTACT_S = 10.0  # shorter timeout for a gateway that has never answered
RETRIED = frozenset({429, 500, 502, 503, 504})
SHOULD_RETRY = "x-should-retry"  # "false" from the gateway: a retry cannot help
FIRST_PAUSE_S, MOST_PAUSE_S = 0.05, 0.5
PAUSE_SHARE = 0.1  # of the elapsed time
PATIENCE_S = 120.0  # default timeout without any useful response

_TRANSFER = httpx.Timeout(TRANSFER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)


class RetryingClient:
    """Retries requests that fail temporarily, and gives up after patience_s without a useful response.

    The timeout is shared: a useful response to any request restarts it.
    """

    def __init__(self, url: str, patience_s: float = PATIENCE_S) -> None:
        self.url = url
        self.last_error: str | None = None  # of the current retries, else None
        self._patience_s = patience_s
        self._last_good: float | None = None
        self._started = time.monotonic()
        self._http = httpx.AsyncClient(base_url=url, headers=own_key(), trust_env=proxied(url))

    async def close(self) -> None:
        await self._http.aclose()

    async def request(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, json: Any = None
    ) -> Any:
        """The JSON of the response. Raises GatewayError, and GatewayUnreachable after the timeout."""
        timeout = httpx.Timeout(READ_MARGIN_S, connect=CONNECT_TIMEOUT_S)
        return answer(
            await self._retry_until_available(
                lambda: self._http.request(method, path, headers=headers, json=json, timeout=timeout)
            )
        )

    async def upload(self, path: Path, key: str) -> Any:
        """Upload a file of batch lines and return its record. Idempotent by key. Raises as request() does."""

        async def send() -> httpx.Response:
            with path.open("rb") as content:
                return await self._http.post(
                    "/v1/files",
                    data={"purpose": "batch"},
                    files={"file": (path.name, content)},
                    headers={"Idempotency-Key": key},
                    timeout=_TRANSFER,
                )

        return answer(await self._retry_until_available(send))

    async def lines(self, path: str) -> AsyncGenerator[bytes]:
        """The lines of a file. An interrupted transfer is resumed. Raises as request() does."""
        read, rest, moved = 0, b"", time.monotonic()
        while True:
            response = await self._retry_until_available(lambda read=read: self._open(path, read))  # type: ignore[misc]
            try:
                if not response.is_success:
                    await response.aread()
                    answer(response)
                # With 200 the server ignored the Range header.
                skip = read if response.status_code == httpx.codes.OK else 0
                async for chunk in response.aiter_raw():
                    moved = time.monotonic()
                    chunk, skip = chunk[skip:], max(0, skip - len(chunk))
                    read += len(chunk)
                    *whole, rest = (rest + chunk).split(b"\n")
                    for line in whole:
                        yield line
                break
            except httpx.TransportError as error:
                self.last_error = reason(error)
                if time.monotonic() - moved > self._patience_s:
                    raise self._unreachable(self._patience_s) from None
                await asyncio.sleep(FIRST_BACKOFF_S)
            finally:
                await response.aclose()
        if rest:
            yield rest

    async def _open(self, path: str, start: int) -> httpx.Response:
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={start}-"} if start else {})}
        request = self._http.build_request("GET", path, headers=headers, timeout=_TRANSFER)
        return await self._http.send(request, stream=True)

    async def _retry_until_available(self, send: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
        """Send until a response arrives that should not be retried."""
        backoff = FIRST_BACKOFF_S
        while True:
            pause = backoff
            try:
                response = await send()
                if response.status_code not in RETRIED or response.headers.get(SHOULD_RETRY) == "false":
                    self._last_good, self.last_error = time.monotonic(), None
                    return response
                await response.aclose()
                self.last_error = f"it answers {response.status_code}"
                pause = max(backoff, _retry_after(response))
                if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
                    self._last_good = time.monotonic()  # it is alive, and asks to wait
            except httpx.TransportError as error:
                self.last_error = reason(error)
            self._check_patience()
            await asyncio.sleep(pause)
            backoff = min(2 * backoff, MAX_BACKOFF_S)

    def _check_patience(self) -> None:
        if self._last_good is None:
            since, limit = self._started, min(FIRST_CONTACT_S, self._patience_s)
        else:
            since, limit = self._last_good, self._patience_s
        if time.monotonic() - since > limit:
            raise self._unreachable(limit)

    def _unreachable(self, seconds: float) -> GatewayUnreachable:
        return GatewayUnreachable(
            f"no answer from the gateway at {self.url} for {seconds:.0f} s: {self.last_error}"
        )


class Pause:
    """Sleeps between two polls: briefly at first, then for a share of the elapsed time."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    async def __call__(self) -> None:
        passed = time.monotonic() - self._began
        await asyncio.sleep(min(max(FIRST_PAUSE_S, passed * PAUSE_SHARE), MOST_PAUSE_S))


def _retry_after(response: httpx.Response) -> float:
    """Seconds; 0 without the header, and for its date form."""
    try:
        return min(float(response.headers.get("Retry-After", 0)), MAX_BACKOFF_S)
    except ValueError:
        return 0.0
