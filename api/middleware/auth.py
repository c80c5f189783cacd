"""Authentication by API key: ASGI middleware around the whole application.

Until the first key is created, only this machine may use the gateway. Once there are keys, each request is
looked up and counted in one Lua call. A revoked key is rejected from the next request on, and its open
requests end (api/requests/open_requests.py).
"""

from __future__ import annotations

import logging
import time
import urllib.parse
from collections.abc import Collection
from dataclasses import replace

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.error_responses import respond
from api.http.errors import TABLE, BadKey, ForeignPage, NoKey, TooManyRequests
from api.http.headers import JSON_TYPE, media_type
from api.http.rate_limit_headers import rate_headers
from api.middleware.security_headers import DOCS, SWAGGER_UI
from api.requests.caller import Caller
from api.requests.open_requests import OpenRequests
from api.requests.threads import KeyThreads, run_in_threadpool
from common.addresses import is_loopback
from tasks.base.errors import StoreUnavailable
from tasks.base.settings import Settings
from tasks.records.api_key import NOBODY, Admission, KeyStatus
from tasks.store.api_keys import SECRET_PREFIX, KeyStore

log = logging.getLogger(__name__)

HEALTH = "/healthz"  # exempt from the limit of open requests: a load balancer must always get an answer
# Need no key: health checks and the API documentation.
PUBLIC = frozenset({HEALTH, "/readyz", DOCS, *SWAGGER_UI, "/openapi.json"})
METRICS = "/metrics"  # needs a key, except from this machine
OPEN_AGE_S = 1.0  # how long the result "there are no keys" is cached


class Authentication:
    """ASGI middleware. Uses `app.state.gateway`, which the application's lifespan sets."""

    def __init__(self, app: ASGIApp, settings: Settings, pages: Collection[str] = ()) -> None:
        """pages: more paths that need no key."""
        self._app = app
        self._public = PUBLIC | {*pages}
        self._settings = settings
        self._local = is_loopback(settings.reached_at)
        # False in a container whose port is published on loopback.
        self._loopback = is_loopback(settings.host)
        self._open_until = float("-inf")
        self._threads = KeyThreads()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers: dict[str, str] = {}
        try:
            caller = Caller()
            request_headers = Headers(scope=scope)
            if not (
                scope["path"] in self._public
                or (scope["path"] == METRICS and self._is_scraped(scope, request_headers))
            ):
                caller = await self._caller(scope, request_headers, headers)
            limited = scope["path"] != HEALTH
            caller = replace(caller, key=_open_requests(scope).enter(caller.owner, limited=limited))
        except Exception as error:
            if type(error) not in TABLE:
                raise
            await respond(error)(scope, receive, _with(headers, send))
            return
        scope.setdefault("state", {})["caller"] = caller
        try:
            if caller.owner == NOBODY:
                await self._app(scope, receive, send)
            else:
                with self._threads.of(caller.owner):
                    await self._app(scope, *_revocable(caller, receive, _with(headers, send)))
        finally:
            _open_requests(scope).leave(caller.owner)

    def _is_scraped(self, scope: Scope, request_headers: Headers) -> bool:
        """Whether a program on this machine requests the metrics, not a web page and not through a proxy."""
        if self._is_remote(scope):
            return False
        return self._local and not (self._loopback and _cross_site_reason(scope, request_headers))

    def _is_remote(self, scope: Scope) -> bool:
        """Whether the client is on another machine although the settings say that the gateway is on loopback.

        The server may listen on another address than the settings say. A Unix socket has no client address.
        """
        client = scope.get("client")
        return self._loopback and client is not None and not is_loopback(client[0])

    async def _caller(
        self, scope: Scope, request_headers: Headers, response_headers: dict[str, str]
    ) -> Caller:
        """Authenticate a request, and add the rate-limit headers to response_headers.

        Raises ApiError and StoreUnavailable.
        """
        keys: KeyStore = scope["app"].state.gateway.keys
        secret = _secret(request_headers)
        # A request with a key is always looked up: the key may be newer than the cached result.
        if secret.startswith(SECRET_PREFIX) or time.monotonic() >= self._open_until:
            try:
                with self._threads.of_secret(secret):
                    found = await run_in_threadpool(keys.admit, secret)
            except StoreUnavailable as error:
                log.warning("%s", error)
                raise
            if not self._is_open(found.status):
                response_headers |= rate_headers(found)
                if found.key_id:
                    self._threads.remember(secret, found.key_id)
                return _admitted(found, secret)
            self._open_until = time.monotonic() + OPEN_AGE_S
        if not self._settings.allow_open:
            if self._is_remote(scope):
                raise NoKey(
                    "this gateway has no API keys, so it only serves its own machine; create a key with "
                    "`medusaq keys create NAME`"
                )
            if how := _cross_site_reason(scope, request_headers):
                raise ForeignPage(how)
        return Caller()

    def _is_open(self, status: KeyStatus) -> bool:
        """Whether requests need no key. Revoking the last key does not open the gateway by itself."""
        if status is KeyStatus.NEVER:
            return self._local or self._settings.allow_open
        return status is KeyStatus.NONE and self._settings.allow_open


def _secret(headers: Headers) -> str:
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


def _admitted(found: Admission, secret: str) -> Caller:
    if found.status is KeyStatus.OK:
        return Caller(found.key_id, found.key_id)
    if found.status is KeyStatus.LIMITED:
        assert found.requests is not None
        raise TooManyRequests(
            f"this API key may send at most {found.requests.limit} requests per minute",
            retry_after_s=found.retry_s,
        )
    if secret:
        raise BadKey("the API key is unknown or was revoked")
    raise NoKey("the API key is missing: send it as Authorization: Bearer mq_...")


def _cross_site_reason(scope: Scope, headers: Headers) -> str:
    """Why a local request seems to come from another site or through a proxy; '' if it does not.

    An open gateway trusts this machine, but a browser on it runs scripts of any web page. DNS rebinding is
    detected by Host, a cross-site request by Origin or Sec-Fetch-Site. Old browsers that send neither header
    are detected by User-Agent, which a page cannot change; a page can only make them send a form, since JSON
    needs a preflight.
    """
    host = headers.get("host", "")
    if not is_loopback(_hostname(host)):
        return (
            f"Host {host!r} is not a name of this machine; create an API key, or set MEDUSAQ_ALLOW_OPEN=1 if "
            "a proxy in front of the gateway controls access"
        )
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        return f"cross-site request from a page of {origin!r}; create an API key to allow it"
    site = headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        return "cross-site request according to Sec-Fetch-Site; create an API key to allow it"
    undeclared = origin is None and site is None and headers.get("user-agent", "").startswith("Mozilla/")
    if undeclared and scope["method"] == "POST" and media_type(headers) != JSON_TYPE:
        return (
            "User-Agent is a browser's, but Origin and Sec-Fetch-Site are missing; create an API key, or "
            "send another User-Agent from a program"
        )
    return ""


def _hostname(host: str) -> str:
    try:
        return urllib.parse.urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _open_requests(scope: Scope) -> OpenRequests:
    found: OpenRequests = scope["app"].state.gateway.open_requests
    return found


def _revocable(caller: Caller, receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Wrap receive and send: receive raises BadKey if the key is revoked before the response starts."""
    begun = False

    async def receiving() -> Message:
        return await (receive() if begun else caller.key.unless_revoked(receive()))

    async def sending(message: Message) -> None:
        nonlocal begun
        begun = True
        await send(message)

    return receiving, sending


def _with(headers: dict[str, str], send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(headers)
        await send(message)

    return sending
