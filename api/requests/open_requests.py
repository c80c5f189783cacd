"""The open requests of each owner at this gateway: limits their number, and ends those of revoked keys.

Redis is queried once a second for all keys with open requests, so that streams need no round trips of
their own. Everything here runs in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from typing import TypeVar

from api.http.errors import BadKey, TooManyRequests
from api.requests.threads import run_in_threadpool
from tasks.base.errors import StoreUnavailable
from tasks.records.api_key import NOBODY
from tasks.store.api_keys import KeyStore

CHECK_S = 1.0
MOST_OPEN = 500  # requests of one key at once: a quarter of the connections that a gateway takes

T = TypeVar("T")
log = logging.getLogger(__name__)


class OpenKey:
    """The state that all open requests of one key share."""

    def __init__(self) -> None:
        self.requests = 0
        self._revoked = False
        self._limits: set[asyncio.Timeout] = set()

    def check(self) -> None:
        """Raises BadKey once the key is revoked."""
        if self._revoked:
            raise BadKey("the API key was revoked")

    async def unless_revoked(self, work: Awaitable[T]) -> T:
        """Await the work. Cancels it and raises BadKey as soon as the key is revoked."""
        try:
            async with asyncio.timeout(0 if self._revoked else None) as limit:
                self._limits.add(limit)
                try:
                    result = await work
                finally:
                    self._limits.discard(limit)
        except TimeoutError:
            self.check()
            raise  # raised by the work itself
        self.check()
        return result

    def revoke(self) -> None:
        if not self._revoked:
            self._revoked = True
            for limit in self._limits:
                limit.reschedule(asyncio.get_running_loop().time())


class OpenRequests:
    """The application's lifespan calls start() and stop().

    MOST_OPEN limits the open requests of each key, and those of all callers without a key together.
    """

    def __init__(self, keys: KeyStore) -> None:
        self._keys = keys
        self._open: dict[str, OpenKey] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch(), name="revoked-keys")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def enter(self, owner: str, *, limited: bool = True) -> OpenKey:
        """Count a request until leave(). Raises TooManyRequests at the limit, if limited."""
        key = self._open.setdefault(owner, OpenKey())
        if limited and key.requests >= MOST_OPEN:
            who = "clients without an API key together" if owner == NOBODY else "an API key"
            raise TooManyRequests(f"{who} may have at most {MOST_OPEN} open requests")
        key.requests += 1
        return key

    def leave(self, owner: str) -> None:
        key = self._open[owner]
        key.requests -= 1
        if not key.requests:
            del self._open[owner]

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            keys = [owner for owner in self._open if owner != NOBODY]
            if not keys:
                continue
            try:
                revoked = await run_in_threadpool(self._keys.revoked, keys)
            except StoreUnavailable as error:
                log.debug("revoked keys: %s", error)
                continue
            for key_id in revoked:
                if key := self._open.get(key_id):
                    key.revoke()
