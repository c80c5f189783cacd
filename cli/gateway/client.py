"""HTTP to the gateway, once: what to do about each kind of answer. Who waits uses retrying_client.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from cli.base.errors import BadInput, CliError, GatewayUnreachable
from tasks.base.settings import get_settings, is_loopback

CONNECT_TIMEOUT_S = 5.0
READ_MARGIN_S = 15.0  # above the wait asked for, before an answer counts as lost
TRANSFER_TIMEOUT_S = 600.0  # of silence: the gateway may be writing what it got


class GatewayError(CliError):
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
    """The JSON of a good answer; raises GatewayError for any other."""
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
    raise GatewayError(response.status_code, error)


def call(url: str, method: str, path: str, *, wait_s: int = 0, **request: Any) -> Any:
    """One request of a single command, answered within wait_s and a margin. Never repeated."""
    return answer(_send(url, method, path, wait_s=wait_s, **request))


def text(url: str, path: str) -> str:
    """An answer that is no JSON, once it is a good one."""
    response = _send(url, "GET", path)
    if not response.is_success:
        answer(response)
    return response.text


def _send(url: str, method: str, path: str, *, wait_s: int = 0, **request: Any) -> httpx.Response:
    headers = own_key() | ({"Prefer": f"wait={wait_s}"} if wait_s else {})
    timeout = httpx.Timeout(wait_s + READ_MARGIN_S, connect=CONNECT_TIMEOUT_S)
    try:
        return httpx.request(
            method, url + path, headers=headers, timeout=timeout, trust_env=proxied(url), **request
        )
    except httpx.ReadTimeout:
        raise GatewayUnreachable(f"the gateway at {url} did not answer in time") from None
    except httpx.TransportError as error:
        raise GatewayUnreachable(f"no gateway at {url}: {reason(error)}") from None


@contextlib.contextmanager
def transfer(url: str, method: str, path: str, **request: Any) -> Iterator[httpx.Response]:
    """A request whose body or answer is a large file. Raises GatewayError and GatewayUnreachable."""
    timeout = httpx.Timeout(TRANSFER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    try:
        with httpx.stream(
            method, url + path, headers=own_key(), timeout=timeout, trust_env=proxied(url), **request
        ) as response:
            if not response.is_success:
                response.read()
                answer(response)
            yield response
    except httpx.TransportError as error:
        raise GatewayUnreachable(f"the gateway at {url} broke off: {reason(error)}") from None


def own_key() -> dict[str, str]:
    """The header that carries the API key of the settings, if there is one."""
    key = get_settings().api_key
    return {} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"}


def proxied(url: str) -> bool:
    """Whether the proxy settings of the environment apply: never on the way to this machine."""
    return not is_loopback(httpx.URL(url).host)


def reason(error: httpx.TransportError) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "it does not answer in time"
    text = str(error)
    return (
        "connection refused"
        if "refused" in text or "attempts failed" in text
        else text or type(error).__name__
    )
