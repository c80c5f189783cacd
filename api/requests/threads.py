"""Threads for calls that block, mostly on Redis; while several API keys send requests, each has a few.

With one pool for all, a key with hundreds of requests open fills its queue, and every other key waits behind
them, for the pool and for the event loop that each finished call keeps busy. So would those who try keys that
there are not.
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

THREADS_ALONE = 40  # anyio's own limit
# Of a key, and of all strangers together: a call takes about 1 ms of the interpreter's lock, for which all
# threads wait in turn.
THREADS_BESIDE = 2
FILE_THREADS = 8  # for the file store: where it is slow, it must not take the threads that serve jobs
FILE_THREADS_BESIDE = 4
BESIDE_S = 10.0  # after another key's request
MOST_KNOWN = 4096  # secrets: 1 MB

P = ParamSpec("P")
T = TypeVar("T")


class _Limits:
    """How many calls of one key may have threads at the same time."""

    def __init__(self) -> None:
        self.calls = CapacityLimiter(THREADS_BESIDE)
        self.files = CapacityLimiter(FILE_THREADS_BESIDE)

    def set(self, *, beside: bool) -> None:
        self.calls.total_tokens = THREADS_BESIDE if beside else THREADS_ALONE
        self.files.total_tokens = FILE_THREADS_BESIDE if beside else FILE_THREADS


_of_request: ContextVar[_Limits | None] = ContextVar("limits of the request's key", default=None)


async def run_in_threadpool(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """On a thread of the key whose request this is; without a key, on one of those that all others share."""
    limits = _of_request.get()
    return await run_sync(partial(call, *args, **kwargs), limiter=None if limits is None else limits.calls)


class FileThreads:
    """For calls that wait for the file store. For one event loop."""

    def __init__(self) -> None:
        self._all = CapacityLimiter(FILE_THREADS)

    async def run(self, call: Callable[[], T], *, abandon: bool = False) -> T:
        """On one of FILE_THREADS, of which a key has a part. abandon: left to itself when cancelled."""
        limits = _of_request.get()
        async with nullcontext() if limits is None else limits.files:
            return await run_sync(call, limiter=self._all, abandon_on_cancel=abandon)


class KeyThreads:
    """Of the keys that have requests open. For one event loop."""

    def __init__(self) -> None:
        self._limits: WeakValueDictionary[str, _Limits] = WeakValueDictionary()
        self._latest = ""  # key
        self._beside_until = 0.0  # on the monotonic clock
        self._known: OrderedDict[str, str] = OrderedDict()  # key by secret, the latest at the end
        self._strangers = _Limits()

    @contextmanager
    def of(self, key_id: str) -> Iterator[None]:
        """What runs meanwhile, and the tasks it starts, use this key's threads."""
        now = time.monotonic()
        if key_id != self._latest:
            self._latest, self._beside_until = key_id, now + BESIDE_S
        limits = self._limits.get(key_id)
        if limits is None:
            limits = self._limits[key_id] = _Limits()
        limits.set(beside=now < self._beside_until)
        with _using(limits):
            yield

    @contextmanager
    def of_holder(self, secret: str) -> Iterator[None]:
        """The same until it is known whose request this is: for the key that had this secret before.

        Whoever sends another secret shares a few threads with all who do, so that strangers hold up no key.
        """
        secret_id = digest(secret)
        if secret_id in self._known:
            self._known.move_to_end(secret_id)
            with self.of(self._known[secret_id]):
                yield
        else:
            with _using(self._strangers):
                yield

    def remember(self, secret: str, key_id: str) -> None:
        """That this is the key's secret."""
        self._known[digest(secret)] = key_id
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)


@contextmanager
def _using(limits: _Limits) -> Iterator[None]:
    token = _of_request.set(limits)
    try:
        yield
    finally:
        _of_request.reset(token)
