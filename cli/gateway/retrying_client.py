"""A client that outlasts pauses and restarts of the gateway, for what takes minutes or a night."""

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
FIRST_CONTACT_S = 10.0  # a gateway that never answered is given up sooner than one that went away
RETRIED = frozenset({429, 500, 502, 503, 504})
SHOULD_RETRY = "x-should-retry"  # "false": the same answer would come again, until midnight perhaps
FIRST_PAUSE_S, MOST_PAUSE_S = 0.05, 0.5
PAUSE_SHARE = 0.1  # of what has passed already
PATIENCE_S = 120.0  # without any useful answer, before a run is given up

_TRANSFER = httpx.Timeout(TRANSFER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)


class RetryingClient:
    """Repeats what a pause of the gateway explains, and gives up after patience_s of silence.

    Silence is shared by all requests: one useful answer to any of them starts the clock anew.
    """

    def __init__(self, url: str, patience_s: float = PATIENCE_S) -> None:
        self.url = url
        self.last_error: str | None = None  # why answers are missing just now
        self._patience_s = patience_s
        self._last_good: float | None = None
        self._started = time.monotonic()
        self._http = httpx.AsyncClient(base_url=url, headers=own_key(), trust_env=proxied(url))

    async def close(self) -> None:
        await self._http.aclose()

    async def request(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, json: Any = None
    ) -> Any:
        """The JSON of the answer. Raises GatewayError, or GatewayUnreachable after the silence."""
        timeout = httpx.Timeout(READ_MARGIN_S, connect=CONNECT_TIMEOUT_S)
        return answer(
            await self._retry_until_available(
                lambda: self._http.request(method, path, headers=headers, json=json, timeout=timeout)
            )
        )

    async def upload(self, path: Path, key: str) -> Any:
        """The record of a file of batch lines; the same key makes no second one. Raises as request() does."""

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
        """The lines of a file. Where its transfer breaks off it goes on. Raises as request() does."""
        read, rest, moved = 0, b"", time.monotonic()
        while True:
            response = await self._retry_until_available(lambda read=read: self._open(path, read))  # type: ignore[misc]
            try:
                if not response.is_success:
                    await response.aread()
                    answer(response)
                skip = read if response.status_code == httpx.codes.OK else 0  # ranges are not served here
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
        """The first response that does not ask for patience."""
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
                    self._last_good = time.monotonic()  # it is alive, and asks for patience
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
    """Between two looks at what takes its time: short at first, for what is short."""

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
