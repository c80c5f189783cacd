"""Threads for blocking calls, mostly to Redis, with a limit for each API key while several keys are active.

In a single pool, the calls of a key with hundreds of open requests would delay those of every other key, and
so would clients that send invalid keys.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from tasks.store.api_keys import digest

THREADS_ONE_KEY = 40  # anyio's own limit
# For each key, and for all unknown secrets together. Few, since a call holds the GIL for about 1 ms.
THREADS_SHARED = 2
FILE_THREADS = 8  # separate, so that a slow file store does not use up the threads that serve jobs
FILE_THREADS_SHARED = 4
SHARING_S = 10.0  # how long the lower limits apply after a request of another key
MAX_KNOWN_SECRETS = 4096  # secrets: 1 MB

P = ParamSpec("P")
T = TypeVar("T")


class _Limits:
    """The limits on one key's concurrent calls."""

    def __init__(self) -> None:
        self.calls = CapacityLimiter(THREADS_SHARED)
        self.files = CapacityLimiter(FILE_THREADS_SHARED)

    def set(self, *, shared: bool) -> None:
        self.calls.total_tokens = THREADS_SHARED if shared else THREADS_ONE_KEY
        self.files.total_tokens = FILE_THREADS_SHARED if shared else FILE_THREADS


_of_request: ContextVar[_Limits | None] = ContextVar("limits of the request's key", default=None)


async def run_in_threadpool(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call on a thread, within the limits of the current request's key."""
    limits = _of_request.get()
    return await run_sync(partial(call, *args, **kwargs), limiter=None if limits is None else limits.calls)


class FileThreads:
    """Threads for calls to the file store. For one event loop."""

    def __init__(self) -> None:
        self._all = CapacityLimiter(FILE_THREADS)

    async def run(self, call: Callable[[], T], *, abandon: bool = False) -> T:
        """Run a call, within the key's limit. abandon: on cancellation, leave it running and return."""
        limits = _of_request.get()
        async with nullcontext() if limits is None else limits.files:
            return await run_sync(call, limiter=self._all, abandon_on_cancel=abandon)


class KeyThreads:
    """The limits of all keys that have open requests. For one event loop."""

    def __init__(self) -> None:
        self._limits: WeakValueDictionary[str, _Limits] = WeakValueDictionary()
        self._latest_key = ""  # key
        self._shared_until = 0.0  # on the monotonic clock
        self._key_of_secret: OrderedDict[str, str] = OrderedDict()  # key by secret, the latest at the end
        self._unknown_secrets = _Limits()

    @contextmanager
    def of(self, key_id: str) -> Iterator[None]:
        """Apply this key's limits to the block and to the tasks that it starts."""
        now = time.monotonic()
        if key_id != self._latest_key:
            self._latest_key, self._shared_until = key_id, now + SHARING_S
        limits = self._limits.get(key_id)
        if limits is None:
            limits = self._limits[key_id] = _Limits()
        limits.set(shared=now < self._shared_until)
        with _using(limits):
            yield

    @contextmanager
    def of_secret(self, secret: str) -> Iterator[None]:
        """Like of(), before the secret is checked: uses the key that last authenticated with it.

        All unknown secrets share one limit, so that invalid keys do not delay valid ones.
        """
        secret_id = digest(secret)
        if secret_id in self._key_of_secret:
            self._key_of_secret.move_to_end(secret_id)
            with self.of(self._key_of_secret[secret_id]):
                yield
        else:
            with _using(self._unknown_secrets):
                yield

    def remember(self, secret: str, key_id: str) -> None:
        """Remember which key this secret belongs to."""
        self._key_of_secret[digest(secret)] = key_id
        if len(self._key_of_secret) > MAX_KNOWN_SECRETS:
            self._key_of_secret.popitem(last=False)


@contextmanager
def _using(limits: _Limits) -> Iterator[None]:
    token = _of_request.set(limits)
    try:
        yield
    finally:
        _of_request.reset(token)
