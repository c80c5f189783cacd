"""Who calls, and whether they may: ASGI middleware around the whole application.

Where no key was ever made, the gateway is open to this machine alone. Once there are keys, each request is
looked up and counted in one Lua call; a revoked key is refused from the next request on, and what it has open
ends (api/requests/open_requests.py).
"""

from __future__ import annotations

import logging
import time
import urllib.parse
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
from tasks.base.errors import StoreUnavailable
from tasks.base.settings import Settings, is_loopback
from tasks.records.api_key import NOBODY, Admission, KeyStatus
from tasks.store.api_keys import SECRET_PREFIX, KeyStore

log = logging.getLogger(__name__)

HEALTH = "/healthz"  # it waits for nothing, and must answer a load balancer however many others wait
# What anybody may see: whether the service lives, and what is in its public source.
PUBLIC = frozenset({HEALTH, "/readyz", DOCS, *SWAGGER_UI, "/openapi.json"})
METRICS = "/metrics"  # of all keys together: for whoever is on this machine, and for keys
OPEN_AGE_S = 1.0  # so soon the first key is asked for everywhere


class Access:
    """keys is made by the application's lifespan, as `app.state.gateway.keys`."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._local = is_loopback(settings.reached_at)
        self._loopback = is_loopback(settings.host)  # not so in a container that is published on loopback
        self._open_until = float("-inf")
        self._threads = KeyThreads()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers: dict[str, str] = {}
        try:
            caller = Caller()
            asked = Headers(scope=scope)
            if not (scope["path"] in PUBLIC or (scope["path"] == METRICS and self._is_scraped(scope, asked))):
                caller = await self._caller(scope, asked, headers)
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

    def _is_scraped(self, scope: Scope, asked: Headers) -> bool:
        """Whether figures are asked for on this machine, by no page in its browser and through no proxy."""
        if self._is_remote(scope):
            return False
        return self._local and not (self._loopback and _from_elsewhere(scope, asked))

    def _is_remote(self, scope: Scope) -> bool:
        """Whether another machine asks, of a gateway that believes to listen on loopback.

        The server that runs the application may have been told another address than the settings. A Unix
        socket has no client.
        """
        client = scope.get("client")
        return self._loopback and client is not None and not is_loopback(client[0])

    async def _caller(self, scope: Scope, asked: Headers, answered: dict[str, str]) -> Caller:
        """Raises ApiError and StoreUnavailable. answered: gets the headers of the answer."""
        keys: KeyStore = scope["app"].state.gateway.keys
        secret = _secret(asked)
        # Who sends a key is never taken for nobody, however new the key is.
        if secret.startswith(SECRET_PREFIX) or time.monotonic() >= self._open_until:
            try:
                with self._threads.of_holder(secret):
                    found = await run_in_threadpool(keys.admit, secret)
            except StoreUnavailable as error:
                log.warning("%s", error)
                raise
            if not self._is_open(found.status):
                answered |= rate_headers(found)
                if found.key_id:
                    self._threads.remember(secret, found.key_id)
                return _admitted(found, secret)
            self._open_until = time.monotonic() + OPEN_AGE_S
        if not self._settings.allow_open:
            if self._is_remote(scope):
                raise NoKey(
                    "without API keys this gateway serves its own machine alone; make one with "
                    "`medusaq keys create NAME`"
                )
            if how := _from_elsewhere(scope, asked):
                raise ForeignPage(how)
        return Caller()

    def _is_open(self, standing: KeyStatus) -> bool:
        """Revoking the last key opens nothing by accident."""
        if standing is KeyStatus.NEVER:
            return self._local or self._settings.allow_open
        return standing is KeyStatus.NONE and self._settings.allow_open


def _secret(headers: Headers) -> str:
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


def _admitted(found: Admission, secret: str) -> Caller:
    if found.status is KeyStatus.OK:
        return Caller(found.key_id, found.key_id)
    if found.status is KeyStatus.LIMITED:
        assert found.requests is not None
        raise TooManyRequests(
            f"this API key may send {found.requests.limit} requests a minute", retry_after_s=found.retry_s
        )
    if secret:
        raise BadKey("the API key is not, or no longer, one of this gateway")
    raise NoKey("an API key is needed: send it as Authorization: Bearer mq_...")


def _from_elsewhere(scope: Scope, headers: Headers) -> str:
    """What shows that somebody from outside asks, through this machine; '' where nothing does.

    An open gateway trusts this machine, which runs a browser, which runs whatever page is looked at. A name
    that a page's owner lets point to this machine (DNS rebinding) shows in Host, a request that a page sends
    elsewhere in Origin or in Sec-Fetch-Site. Browsers that know neither show in User-Agent, which no page can
    change; a form is all that a page can make them send, while JSON needs a preflight.
    """
    host = headers.get("host", "")
    if not is_loopback(_hostname(host)):
        return (
            f"Host {host!r} is no name of this machine; without API keys others are refused, but for a proxy "
            "in front with MEDUSAQ_ALLOW_OPEN=1"
        )
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        return f"a page of {origin!r} sent this; without API keys that is refused"
    site = headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        return "a page of another site sent this, as Sec-Fetch-Site says; without API keys that is refused"
    unsaid = origin is None and site is None and headers.get("user-agent", "").startswith("Mozilla/")
    if unsaid and scope["method"] == "POST" and media_type(headers) != JSON_TYPE:
        return (
            "by its User-Agent a browser sent this, without Origin and Sec-Fetch-Site: without API keys that "
            "is refused; a program can send another User-Agent"
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
    """The same, but receive raises BadKey when the key is revoked before there is an answer."""
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
