"""Single HTTP requests to the gateway, without retries. Long commands use retrying_client.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from cli.base.errors import BadInput, CliError, GatewayUnreachable
from tasks.base.settings import get_settings, is_loopback

CONNECT_TIMEOUT_S = 5.0
READ_MARGIN_S = 15.0  # added to the requested wait
TRANSFER_TIMEOUT_S = 600.0  # without data: the gateway may still be storing an upload


class GatewayError(CliError):
    """The gateway answered with an error that a retry cannot fix."""

    def __init__(self, status: int, error: Mapping[str, Any]) -> None:
        super().__init__(str(error.get("message") or f"HTTP {status}"))
        self.status = status
        self.error = dict(error)


def check_url(url: str) -> str:
    """The URL without a trailing slash. Raises BadInput if it is not an HTTP URL."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise BadInput(f"--url {url!r}: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise BadInput(f"--url {url!r}: must look like http://127.0.0.1:7860")
    return url.rstrip("/")


def answer(response: httpx.Response) -> Any:
    """The JSON of a successful response. Raises GatewayError for any other."""
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
    """Send one request without retries. wait_s: seconds of `Prefer: wait`."""
    return answer(_send(url, method, path, wait_s=wait_s, **request))


def text(url: str, path: str) -> str:
    """The text of a successful response that is not JSON."""
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
    """Send a request whose body or response is a large file. Raises GatewayError and GatewayUnreachable."""
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
        raise GatewayUnreachable(f"the connection to the gateway at {url} failed: {reason(error)}") from None


def own_key() -> dict[str, str]:
    """The Authorization header with the API key of the settings, if there is one."""
    key = get_settings().api_key
    return {} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"}


def proxied(url: str) -> bool:
    """Whether to use the environment's proxy settings: never for this machine."""
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
