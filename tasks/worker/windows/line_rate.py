"""How many lines a second this worker ends while it has lines to run."""

from __future__ import annotations

import time
from collections.abc import Callable

SPAN_S = 0.5  # of work in which ends are counted, at least, unless there are
MANY = 4  # times as many as the worker has slots
WEIGHT = 0.5  # of a span that is faster than the mean before it


class LineRate:
    """One thread changes it."""

    def __init__(self, slots: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = 0.0
        self._slots, self._clock = slots, clock
        self._lines = 0
        self._worked_s = 0.0  # before the work that is under way
        self._since: float | None = None

    @property
    def per_s(self) -> float:
        """0 before the first measurement; what was measured last while nothing runs.

        No more than can be true if all slots end at once now: where nothing ends it falls.
        """
        since = self._since
        if since is None:
            return self._per_s
        worked_s = self._worked_s + self._clock() - since
        return min(self._per_s, (self._lines + self._slots) / max(worked_s, 1e-3))

    def begin(self) -> None:
        """There are lines to run."""
        if self._since is None:
            self._since = self._clock()

    def count(self, lines: int) -> None:
        """So many have ended."""
        if self._since is None:
            return
        self._lines += lines
        now = self._clock()
        worked_s = self._worked_s + now - self._since
        if self._lines < self._slots or (worked_s < SPAN_S and self._lines < MANY * self._slots):
            return
        per_s = self._lines / max(worked_s, 1e-3)
        # A fall counts at once, or too many of lines that take longer would be claimed.
        rises = 0 < self._per_s < per_s
        self._per_s = (1 - WEIGHT) * self._per_s + WEIGHT * per_s if rises else per_s
        self._lines, self._worked_s, self._since = 0, 0.0, now

    def pause(self) -> None:
        """There are no more lines."""
        if self._since is not None:
            self._worked_s += self._clock() - self._since
            self._since = None
