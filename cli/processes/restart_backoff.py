"""Exponential backoff for restarts of a service, which is reset once it has been healthy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

PAUSE_FIRST_S = 0.5  # before the first restart, doubled for each further end
PAUSE_MAX_S = 60.0  # a model that loads for a minute then uses at most half of the machine's time
HEALTHY_S = 60.0  # uptime after which the backoff is reset
START_LIMIT = 5  # ends without ever being ready, after which the service is given up


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
        """A line about the last end, for the log."""
        times = f" after {self.ends} ends since {clock(self.since)}" if self.ends > 1 else ""
        return f"{self.service} ended ({self.reason}), restarting it in {self.pause:g} s{times}"

    def status_line(self, now: float) -> str:
        """A line about its current state."""
        times = "once" if self.ends == 1 else f"{self.ends} times"
        next_start = self.next_start
        then = (
            "it has been started again"
            if next_start is None
            else f"it rests, and is started again in {max(0.0, next_start - now):.0f} s"
        )
        return f"{self.service} ended {times} since {clock(self.since)}, last: {self.reason}; {then}"


class Restarts:
    """Tracks the ends of each service, and when to restart it."""

    def __init__(self, changed: Callable[[Sequence[Restart]], None]) -> None:
        """changed: called at each change with all restarts, in the order of their first end."""
        self._changed = changed
        self._restarts: dict[str, Restart] = {}
        self._next: dict[str, float] = {}
        self._started: dict[str, float] = {}
        self._ready: set[str] = set()
        self._unready: dict[str, int] = {}

    def added(self, service: str) -> None:
        """Reset a service that is new or begun again."""
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
        """Record an end, and schedule the restart."""
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
        """Seconds until the restart, at least 0; None if none is scheduled."""
        due = self._next.get(service)
        return None if due is None else max(0.0, due - time.monotonic())

    def forget(self, service: str) -> None:
        """Forget a service that was given up."""
        self.added(service)
        self._next.pop(service, None)
        if self._restarts.pop(service, None) is not None:
            self._notify()

    def forget_healthy(self) -> None:
        """Reset the services that have been healthy for HEALTHY_S."""
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
