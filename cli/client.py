"""HTTP to the gateway: what to do about each kind of answer, for single commands and bulk runs alike."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from cli.errors import BadInput, CliError, GatewayUnreachable
from tasks.settings import is_loopback

CONNECT_TIMEOUT_S = 5.0
READ_MARGIN_S = 15.0  # above the wait asked for, before an answer counts as lost
FIRST_BACKOFF_S = 0.25
MAX_BACKOFF_S = 8.0
FIRST_CONTACT_S = 10.0  # a gateway that never answered is given up sooner than one that went away
RETRIED = frozenset({429, 500, 502, 503, 504})
TRANSFER_TIMEOUT_S = 600.0  # of silence: the gateway may be writing what it got
PATIENCE_S = 120.0  # without any useful answer, before a run is given up


class Refused(CliError):
    """The gateway answered with an error that repeating cannot mend."""

    def __init__(self, status: int, error: Mapping[str, Any]) -> None:
        super().__init__(str(error.get("message") or f"HTTP {status}"))
        self.status = status
        self.error = dict(error)


def check_url(url: str) -> str:
    """The address without a trailing slash; raises BadInput for what is no http address."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise BadInput(f"--url {url!r}: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise BadInput(f"--url {url!r}: must look like http://127.0.0.1:7860")
    return url.rstrip("/")


def answer(response: httpx.Response) -> Any:
    """The JSON of a good answer; raises Refused for any other."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.is_success and isinstance(body, dict):
        return body
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        what = f"HTTP {response.status_code} without an error object: is this a medusaq gateway?"
        error = {"message": what, "type": "unexpected_answer", "param": None, "code": "unexpected_answer"}
    raise Refused(response.status_code, error)


def call(url: str, method: str, path: str, *, wait_s: int = 0, **request: Any) -> Any:
    """One request of a single command, answered within wait_s and a margin. Never repeated."""
    headers = {"Prefer": f"wait={wait_s}"} if wait_s else {}
    timeout = httpx.Timeout(wait_s + READ_MARGIN_S, connect=CONNECT_TIMEOUT_S)
    try:
        response = httpx.request(
            method, url + path, headers=headers, timeout=timeout, trust_env=_proxied(url), **request
        )
    except httpx.ReadTimeout:
        raise GatewayUnreachable(f"the gateway at {url} did not answer in time") from None
    except httpx.TransportError as error:
        raise GatewayUnreachable(f"no gateway at {url}: {_reason(error)}") from None
    return answer(response)


@contextlib.contextmanager
def transfer(url: str, method: str, path: str, **request: Any) -> Iterator[httpx.Response]:
    """A request whose body or answer is a large file. Raises Refused and GatewayUnreachable."""
    timeout = httpx.Timeout(TRANSFER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    try:
        with httpx.stream(
            method, url + path, timeout=timeout, trust_env=_proxied(url), **request
        ) as response:
            if not response.is_success:
                response.read()
                answer(response)
            yield response
    except httpx.TransportError as error:
        raise GatewayUnreachable(f"the gateway at {url} broke off: {_reason(error)}") from None


class PatientClient:
    """Repeats what a pause or a restart of the gateway explains, and gives up after patience_s of silence.

    Silence is shared by all requests: one useful answer to any of them starts the clock anew.
    """

    def __init__(self, url: str, connections: int, patience_s: float = PATIENCE_S) -> None:
        self.url = url
        self._patience_s = patience_s
        self._last_good: float | None = None
        self._started = time.monotonic()
        self._http = httpx.AsyncClient(
            base_url=url,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            trust_env=_proxied(url),
        )
        self.trouble: str | None = None  # why answers are missing just now

    async def close(self) -> None:
        await self._http.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        wait_s: int = 0,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
    ) -> Any:
        """The JSON of the answer. Raises Refused, or GatewayUnreachable after the silence."""
        sent = {**(headers or {}), **({"Prefer": f"wait={wait_s}"} if wait_s else {})}
        timeout = httpx.Timeout(wait_s + READ_MARGIN_S, connect=CONNECT_TIMEOUT_S, pool=None)
        backoff = FIRST_BACKOFF_S
        while True:
            pause = backoff
            try:
                response = await self._http.request(method, path, headers=sent, json=json, timeout=timeout)
                if response.status_code not in RETRIED:
                    self._last_good, self.trouble = time.monotonic(), None
                    return answer(response)
                self.trouble = f"it answers {response.status_code}"
                pause = max(backoff, _retry_after(response))
                if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
                    self._last_good = time.monotonic()  # it is alive, and asks for patience
            except httpx.TransportError as error:
                self.trouble = _reason(error)
            self._check_patience()
            await asyncio.sleep(pause)
            backoff = min(2 * backoff, MAX_BACKOFF_S)

    def _check_patience(self) -> None:
        if self._last_good is None:
            since, limit = self._started, min(FIRST_CONTACT_S, self._patience_s)
        else:
            since, limit = self._last_good, self._patience_s
        if time.monotonic() - since > limit:
            raise GatewayUnreachable(
                f"no answer from the gateway at {self.url} for {limit:.0f} s: {self.trouble}"
            )


def _proxied(url: str) -> bool:
    """Whether the proxy settings of the environment apply: never on the way to this machine."""
    return not is_loopback(httpx.URL(url).host)


def _reason(error: httpx.TransportError) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "it does not answer in time"
    text = str(error)
    return (
        "connection refused"
        if "refused" in text or "attempts failed" in text
        else text or type(error).__name__
    )


def _retry_after(response: httpx.Response) -> float:
    """Seconds; 0 without the header, and for its date form."""
    try:
        return min(float(response.headers.get("Retry-After", 0)), MAX_BACKOFF_S)
    except ValueError:
        return 0.0
