"""Single HTTP requests to the gateway, without retries. Long commands use retrying_client.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx

from cli.base.errors import BadInput
from medusaq.connection import BlockingConnection
from medusaq.errors import GatewayUnreachable, MedusaqError
from medusaq.requests import Requests, answer, authorization, checked_url, reason
from tasks.base.settings import get_settings


def check_url(url: str) -> str:
    """The URL without a trailing slash. Raises BadInput if it is not an HTTP URL."""
    try:
        return checked_url(url)
    except MedusaqError as error:
        raise BadInput(f"--url {error}") from None


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
    with _connected(url) as connection:
        return connection.run(Requests(url).once(method, path, wait_s=wait_s, **request))


@contextlib.contextmanager
def transfer(url: str, method: str, path: str, **request: Any) -> Iterator[httpx.Response]:
    """Send a request whose body or response is a large file. Raises GatewayError and GatewayUnreachable."""
    with _connected(url) as connection:
        try:
            yield connection.run(Requests(url).opened_once(method, path, **request)).response
        except httpx.TransportError as error:
            raise GatewayUnreachable(
                f"the connection to the gateway at {url} failed: {reason(error)}"
            ) from None


def own_key() -> dict[str, str]:
    """The Authorization header with the API key of the settings, if there is one."""
    key = get_settings().api_key
    return authorization(None if key is None else key.get_secret_value())


def _connected(url: str) -> contextlib.closing[BlockingConnection]:
    return contextlib.closing(BlockingConnection(url, own_key()))
