"""Requests to a gateway as flows: with retries, through its pauses and restarts, or once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

import httpx

from medusaq.errors import GatewayError, GatewayUnreachable, MedusaqError
from medusaq.steps import Close, Flow, Give, Open, Read, Send, Sleep, Stream

READ_MARGIN_S = 15.0  # added to the requested wait
TRANSFER_TIMEOUT_S = 600.0  # without data: the gateway may still be storing an upload
EVENTS_TIMEOUT_S = 60.0  # without data: the gateway sends a comment every 15 s
FIRST_BACKOFF_S = 0.25
MAX_BACKOFF_S = 8.0
FIRST_CONTACT_S = 10.0  # shorter timeout for a gateway that has never answered
RETRIED = frozenset({429, 500, 502, 503, 504})
SHOULD_RETRY = "x-should-retry"  # "false" from the gateway: a retry cannot help
PATIENCE_S = 120.0  # default timeout without any useful response


def checked_url(url: str) -> str:
    """The URL without a trailing slash. Raises MedusaqError if it is not an HTTP URL."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise MedusaqError(f"{url!r}: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise MedusaqError(f"{url!r}: must look like http://127.0.0.1:7860")
    return url.rstrip("/")


def authorization(api_key: str | None) -> dict[str, str]:
    """The header with the API key, if there is one. Raises MedusaqError for one that no header can hold."""
    if not api_key:
        return {}
    if not (api_key.isascii() and api_key.isprintable()):
        raise MedusaqError("the API key has characters that no key has")
    return {"Authorization": f"Bearer {api_key}"}


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


class Requests:
    """Retries requests that fail temporarily, and gives up after patience_s without a useful response.

    A useful response to any request restarts the timeout of all that are retried. Time before a request does
    not count, nor does that of a transfer that was refused or broke off.
    """

    def __init__(self, url: str, patience_s: float = PATIENCE_S) -> None:
        self.url = url
        self.last_error: str | None = None  # of the current retries, else None
        self._patience_s = patience_s
        self._last_good: float | None = None

    def once(self, method: str, path: str, *, wait_s: float = 0, **options: Any) -> Flow[httpx.Response]:
        """A response of any status, without retries. wait_s: seconds of `Prefer: wait`."""
        try:
            response: httpx.Response = yield _send(method, path, wait_s, options)
        except httpx.ReadTimeout:
            raise GatewayUnreachable(f"the gateway at {self.url} did not answer in time") from None
        except httpx.TransportError as error:
            raise GatewayUnreachable(f"no gateway at {self.url}: {reason(error)}") from None
        return response

    def opened_once(self, method: str, path: str, **options: Any) -> Flow[Stream]:
        """A large transfer, without retries. Raises GatewayError."""
        stream: Stream = yield Open(Send(method, path, TRANSFER_TIMEOUT_S, options))
        if not stream.response.is_success:
            answer(stream.response)
        return stream

    def json(self, method: str, path: str, *, wait_s: float = 0, **options: Any) -> Flow[Any]:
        """The JSON of the response. Raises GatewayError, and GatewayUnreachable after the timeout."""
        response = yield from self._until_available(lambda: _send(method, path, wait_s, options))
        return answer(response)

    def upload(self, name: str, content: IO[bytes], key: str) -> Flow[Any]:
        """Upload a file for batches and return its record. Idempotent by key. Raises as json() does."""

        def send() -> Send:
            content.seek(0)
            form = {"data": {"purpose": "batch"}, "files": {"file": (name, content)}}
            return Send(
                "POST", "/v1/files", TRANSFER_TIMEOUT_S, {"headers": {"Idempotency-Key": key}, **form}
            )

        response = yield from self._until_available(send)
        return answer(response)

    def lines(self, path: str, made: Callable[[bytes], Any] = bytes) -> Flow[None]:
        """Give what is made of each line. An interrupted transfer is resumed. Raises as json() does."""
        read, rest = 0, b""

        def take(block: bytes) -> list[Any]:
            nonlocal read, rest
            read += len(block)
            *whole, rest = (rest + block).split(b"\n")
            return [made(line) for line in whole]

        def send() -> Send:
            part = {"Range": f"bytes={read}-"} if read else {}
            return Send("GET", path, TRANSFER_TIMEOUT_S, {"headers": {"Accept-Encoding": "identity", **part}})

        def known(response: httpx.Response) -> int:
            return read if response.status_code == httpx.codes.OK else 0  # the Range header was ignored

        yield from self.blocks(send, known, take)
        if rest:
            yield Give([made(rest)])

    def blocks(
        self,
        send: Callable[[], Send],
        known: Callable[[httpx.Response], int],
        take: Callable[[bytes], Sequence[Any]],
    ) -> Flow[None]:
        """Give what take() makes of the blocks of a response, which is asked for again when it breaks off.

        known: how many bytes of a new response are those of an earlier one.
        """
        moved = time.monotonic()
        while True:
            stream = yield from self._until_available(lambda: Open(send()))
            try:
                left = known(stream.response)
                while (block := (yield Read(stream))) is not None:
                    moved = time.monotonic()
                    block, left = block[left:], max(0, left - len(block))
                    yield Give(take(block))
                return
            except httpx.TransportError as error:
                self.last_error = reason(error)
                if time.monotonic() - moved > self._patience_s:
                    raise self._unreachable(self._patience_s) from None
                yield Sleep(FIRST_BACKOFF_S)
            finally:
                yield Close(stream)

    def _until_available(self, make: Callable[[], Send | Open]) -> Flow[Any]:
        """Send until a response arrives that should not be retried. A stream that is a refusal is raised."""
        backoff, since = FIRST_BACKOFF_S, time.monotonic()
        while True:
            pause, sent, counted = backoff, time.monotonic(), 0.0
            try:
                result = yield make()
                response = result.response if isinstance(result, Stream) else result
                if response.status_code not in RETRIED or response.headers.get(SHOULD_RETRY) == "false":
                    self._last_good, self.last_error = time.monotonic(), None
                    if isinstance(result, Stream) and not response.is_success:
                        answer(response)
                    return result
                self.last_error = f"it answers {response.status_code}"
                pause = max(backoff, _retry_after(response))
                if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
                    self._last_good = time.monotonic()  # it is alive, and asks to wait
            except httpx.TransportError as error:
                self.last_error = reason(error)
                counted = READ_MARGIN_S if isinstance(error, httpx.TimeoutException) else 0.0
            since += max(0.0, time.monotonic() - sent - counted)
            self._check_patience(since)
            yield Sleep(pause)
            backoff = min(2 * backoff, MAX_BACKOFF_S)

    def _check_patience(self, since: float) -> None:
        """since: when a request was first sent, later by the time of its transfers that does not count."""
        if self._last_good is None:
            limit = min(FIRST_CONTACT_S, self._patience_s)
        else:
            since, limit = max(since, self._last_good), self._patience_s
        if time.monotonic() - since >= limit:
            raise self._unreachable(limit)

    def _unreachable(self, seconds: float) -> GatewayUnreachable:
        return GatewayUnreachable(
            f"no answer from the gateway at {self.url} for {seconds:.0f} s: {self.last_error}"
        )


def reason(error: httpx.TransportError) -> str:
    """Why there is no answer, in a few words."""
    if isinstance(error, httpx.TimeoutException):
        return "it does not answer in time"
    text = str(error)
    if "refused" in text or "attempts failed" in text:
        return "connection refused"
    return text or type(error).__name__


def _send(method: str, path: str, wait_s: float, options: Mapping[str, Any]) -> Send:
    options = {name: value for name, value in options.items() if value is not None}
    if wait_s:
        options["headers"] = {"Prefer": f"wait={wait_s:.0f}", **options.get("headers", {})}
    return Send(method, path, wait_s + READ_MARGIN_S, options)


def _retry_after(response: httpx.Response) -> float:
    """Seconds; 0 without the header, and for its date form."""
    try:
        return min(float(response.headers.get("Retry-After", 0)), MAX_BACKOFF_S)
    except ValueError:
        return 0.0
