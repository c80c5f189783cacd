"""When a service that ended is started again: pauses grow with each end, until it has been healthy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

PAUSE_FIRST_S = 0.5  # before the first restart, doubled for each further end
PAUSE_MAX_S = 60.0  # a model that takes a minute to load then costs half of the machine's time at most
HEALTHY_S = 60.0  # a run that lasts so long makes up for all ends before
START_LIMIT = 5  # ends without having been ready, after which starting is hopeless


@dataclass(frozen=True, slots=True)
class Restart:
    """The ends of a service since it was last healthy. Times in Unix seconds.

    pause: seconds between the last end and the next start. next_start: None once it has been started again.
    """

    service: str
    ends: int
    since: float
    reason: str
    pause: float
    next_start: float | None

    def announcement(self) -> str:
        """Of the last end, in a line."""
        times = f" after {self.ends} ends since {clock(self.since)}" if self.ends > 1 else ""
        return f"{self.service} ended ({self.reason}), restarting it in {self.pause:g} s{times}"

    def status_line(self, now: float) -> str:
        """What is known of it at a time, for people."""
        times = "once" if self.ends == 1 else f"{self.ends} times"
        next_start = self.next_start
        then = (
            "it has been started again"
            if next_start is None
            else f"it rests, and is started again in {max(0.0, next_start - now):.0f} s"
        )
        return f"{self.service} ended {times} since {clock(self.since)}, last: {self.reason}; {then}"


class Restarts:
    """Counts the ends of each service. Times of arguments and results in seconds of time.monotonic()."""

    def __init__(self, changed: Callable[[Sequence[Restart]], None]) -> None:
        """changed: gets all of them at each change, in the order of their first end."""
        self._changed = changed
        self._restarts: dict[str, Restart] = {}
        self._next: dict[str, float] = {}
        self._started: dict[str, float] = {}
        self._ready: set[str] = set()
        self._unready: dict[str, int] = {}

    def added(self, service: str) -> None:
        """It is new, or begun anew: whether it can be ready is unknown."""
        self._ready.discard(service)
        self._unready.pop(service, None)

    def started(self, service: str) -> None:
        self._started[service] = time.monotonic()
        if self._next.pop(service, None) is not None:
            self._restarts[service] = replace(self._restarts[service], next_start=None)
            self._notify()

    def ready(self, service: str) -> None:
        self._ready.add(service)

    def ended(self, service: str, reason: str) -> Restart:
        """Note an end; the answer's next_start is set."""
        before = self._restarts.get(service)
        if service not in self._ready:
            self._unready[service] = self._unready.get(service, 0) + 1
        ends = 1 if before is None else before.ends + 1
        pause: float = min(PAUSE_FIRST_S * 2 ** min(ends - 1, 16), PAUSE_MAX_S)
        now = time.time()
        since = now if before is None else before.since
        restart = Restart(service, ends, since, reason, pause, now + pause)
        self._next[service] = time.monotonic() + pause
        self._started.pop(service, None)
        self._restarts[service] = restart
        self._notify()
        return restart

    def was_ready(self, service: str) -> bool:
        """Whether it was ready since it was added."""
        return service in self._ready

    def hopeless(self, service: str) -> bool:
        """Whether it ended START_LIMIT times and was never ready since it was added."""
        return self._unready.get(service, 0) >= START_LIMIT

    def pause(self, service: str) -> float | None:
        """Seconds until it may be started again, at least 0; None for one that does not wait for that."""
        due = self._next.get(service)
        return None if due is None else max(0.0, due - time.monotonic())

    def forget(self, service: str) -> None:
        """It was given up."""
        self.added(service)
        self._next.pop(service, None)
        if self._restarts.pop(service, None) is not None:
            self._notify()

    def forget_healthy(self) -> None:
        """Forget the ends of what has been healthy since."""
        healthy = time.monotonic() - HEALTHY_S
        over = [name for name in self._restarts if self._started.get(name, healthy + 1) <= healthy]
        for service in over:
            del self._restarts[service]
        if over:
            self._notify()

    def _notify(self) -> None:
        self._changed(tuple(self._restarts.values()))


def clock(unix: float) -> str:
    """Local time of day."""
    return f"{datetime.fromtimestamp(unix):%H:%M:%S}"
