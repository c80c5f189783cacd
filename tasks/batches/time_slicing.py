"""Runs long work in time slices on a few threads, shared fairly among owners.

Work is a generator that can be suspended after any step. The owner whose work has had the least time goes
next, so the work of one owner waits for slices of another's, never for all that the other has queued.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

Steps = Generator[None, None, None]

THREADS = 2
# Threads that run one owner's work at a time: one thread is left for other owners, even if a step hangs.
OF_OWNER = 1
UNDER_WAY = 2  # work of one owner that is begun and not ended: each takes memory and temporary files
SLICE_S = 0.05  # too short a wait to be noticed, and a hundred times the cost of a switch


@dataclass(slots=True)
class _Work:
    what: str
    steps: Steps


@dataclass(slots=True)
class _Owner:
    """used_s: time that its work has run; running: number of threads that run it now."""

    used_s: float
    waiting: deque[_Work] = field(default_factory=deque)
    begun: deque[_Work] = field(default_factory=deque)
    running: int = 0

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.begun or self.running)

    def ready(self) -> bool:
        return self.running < OF_OWNER and bool(self.begun or self._may_begin())

    def next(self) -> _Work:
        """Waiting work if it may begin, otherwise the begun work that was suspended first."""
        return self.waiting.popleft() if self._may_begin() else self.begun.popleft()

    def _may_begin(self) -> bool:
        return bool(self.waiting) and len(self.begun) + self.running < UNDER_WAY


class TimeSlicer:
    """Thread-safe. attempt(what, slice) runs a slice and returns its result, or None after an error."""

    def __init__(self, attempt: Callable[[str, Callable[[], bool]], bool | None]) -> None:
        self._attempt = attempt
        self._changed = threading.Condition()
        self._owners: dict[str, _Owner] = {}
        self._known: set[str] = set()  # names of the work that is queued or running
        self._stopping = False
        self._threads: list[threading.Thread] = []

    def begin(self, what: str, owner: str, steps: Steps) -> None:
        """Queue work, unless work named `what` is queued or running, or stop() was called."""
        with self._changed:
            if what in self._known or self._stopping:
                return
            self._known.add(what)
            if owner not in self._owners:
                least = min((other.used_s for other in self._owners.values()), default=0.0)
                self._owners[owner] = _Owner(least)
            self._owners[owner].waiting.append(_Work(what, steps))
            if not self._threads:
                self._threads = [
                    threading.Thread(target=self._loop, name=f"time-slice-{n}", daemon=True)
                    for n in range(THREADS)
                ]
                for thread in self._threads:
                    thread.start()
            self._changed.notify()

    def stop(self) -> None:
        """Close all work; a slice that is running ends by itself."""
        with self._changed:
            self._stopping = True
            left = [work for owner in self._owners.values() for work in (*owner.begun, *owner.waiting)]
            self._owners.clear()
            self._changed.notify_all()
        for work in left:
            work.steps.close()

    def _loop(self) -> None:
        while (turn := self._next()) is not None:
            owner, work = turn
            began = time.monotonic()
            ended = self._attempt(work.what, lambda steps=work.steps: self._slice(steps)) is not False  # type: ignore[misc]
            self._done(owner, work, time.monotonic() - began, ended=ended)

    def _next(self) -> tuple[_Owner, _Work] | None:
        with self._changed:
            while not self._stopping:
                ready = [owner for owner in self._owners.values() if owner.ready()]
                if ready:
                    owner = min(ready, key=lambda one: one.used_s)
                    work = owner.next()
                    owner.running += 1
                    return owner, work
                self._changed.wait()
        return None

    def _slice(self, steps: Steps) -> bool:
        """Run one slice; return whether the work has ended."""
        until = time.monotonic() + SLICE_S
        return all(time.monotonic() < until for _ in steps)

    def _done(self, owner: _Owner, work: _Work, took_s: float, *, ended: bool) -> None:
        with self._changed:
            owner.running -= 1
            owner.used_s += took_s
            if ended:
                self._known.discard(work.what)
            else:
                owner.begun.append(work)
            self._owners = {name: one for name, one in self._owners.items() if not one.idle}
            left = self._stopping and not ended
            self._changed.notify()
        if left:
            work.steps.close()
