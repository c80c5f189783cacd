"""How long a run goes on, from the requests that have ended and the tokens of those that run.

api/console/static/scripts/parts/time_left.js is the same for the browser; a test compares the two.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import astuple, dataclass

LEAST_ENDS, LEAST_S = 5, 8.0  # before, the first answers alone are known, which are short ones
# The speed is that of the second half of the time so far: loading and first prompts count for a while only.
LEAST_WINDOW_S, MOST_WINDOW_S = 20.0, 300.0
POINTS_EVERY_S = 1.0
STEADY_S = 20.0  # the median of the ends foretold in this time is told, once they span LEAST_STEADY_S
LEAST_STEADY_S = 5.0
LAST_ROW, THIN_END = 0.5, 0.6  # shares that fit: while requests wait, and once none does and calls get faster


@dataclass(frozen=True, slots=True)
class Progress:
    """Requests that have ended, those that failed among them, and their tokens.

    running: requests that are being answered; running_tokens: what these have got so far.
    """

    done: int
    failed: int
    tokens: int
    running: int = 0
    running_tokens: int = 0


def sum_of(*parts: Progress) -> Progress:
    return Progress(*map(sum, zip(*map(astuple, parts), strict=True)))


class TimeLeft:
    """Call note() at each look; seconds() tells what it makes of all of them."""

    def __init__(self, now: float, before: Progress) -> None:
        self._before = before  # of what was done by then, its speed is not known
        self._now = before
        self._began: float | None = None
        self._most = 0
        self._speeds: deque[tuple[float, int, int]] = deque([(now, 0, 0)])  # when, tokens, running
        self._groups, self._squares = 0, 0.0  # of requests that were seen to end together
        self._ends: deque[tuple[float, float]] = deque()  # when, the end as foretold then
        self._first = now  # when one was foretold first

    def note(self, now: float, progress: Progress, total: int) -> None:
        ended, tokens = progress.done - self._now.done, progress.tokens - self._now.tokens
        if ended > 0:
            self._groups += 1
            self._squares += tokens**2 / ended
        self._now = progress
        # A request that is lost begins anew: its tokens are not taken back here.
        self._most = max(self._most, progress.tokens + progress.running_tokens - self._before.tokens)
        if self._began is None:
            if not (progress.running or self._most):
                return
            self._began = now
        if now - self._speeds[-1][0] >= POINTS_EVERY_S:
            self._speeds.append((now, self._most, progress.running))
        window = min(MOST_WINDOW_S, max(LEAST_WINDOW_S, (now - self._began) / 2))
        while len(self._speeds) > 1 and self._speeds[1][0] <= now - window:
            self._speeds.popleft()
        while self._ends and self._ends[0][0] < now - STEADY_S:
            self._ends.popleft()
        if (left := self._foretold(now, total - progress.done)) is not None:
            if not self._ends:
                self._first = now
            self._ends.append((now, now + left))

    def seconds(self, now: float) -> float | None:
        """None as long as too little is known."""
        if not self._ends or self._ends[-1][0] - self._first < LEAST_STEADY_S:
            return None
        return max(0.0, statistics.median(end for _, end in self._ends) - now)

    def _foretold(self, now: float, remaining: int) -> float | None:
        ended = self._now.done - self._before.done
        running, got = self._now.running, self._now.running_tokens
        at, before, _ = self._speeds[0]
        per_s = (self._most - before) / (now - at) if now > at else 0.0
        early = self._began is None or now - self._began < LEAST_S
        if early or not per_s or ended < max(LEAST_ENDS, running):
            return None
        mean, spread = self._length(ended, running, got)
        beside = max(1.0, statistics.mean(running for _, _, running in self._speeds))
        row_s = beside / per_s  # of one token of one request
        rest = max(mean - got / running, spread * mean) if running else 0.0  # of one that runs
        longest = 1 + spread * math.log(max(1, running))  # of those that run, in means: as of waiting times
        waiting = max(0, remaining - running)
        if not waiting:
            return THIN_END * rest * longest * row_s
        return (waiting * mean + running * rest) / per_s + LAST_ROW * (mean * longest - rest) * row_s

    def _length(self, ended: int, running: int, got: int) -> tuple[float, float]:
        """Tokens of an answer, and how far they spread as a share of it.

        Short answers end first. If all are equally long, the mean of those that ended is right; if they end
        by chance, it is right to count the tokens of the others as well. Their spread says which.
        """
        tokens = self._now.tokens - self._before.tokens
        mean = tokens / ended
        # Of sums over groups the variance is known without that of each.
        variance = (self._squares - mean * tokens) / max(1, self._groups - 1)
        spread = min(1.0, math.sqrt(max(0.0, variance)) / mean) if mean else 0.0
        return max(mean + spread * got / ended, (tokens + got) / (ended + running)), spread
