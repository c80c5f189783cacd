"""T(n): the seconds of one decode call of n rows, measured where the engine runs.

Attention takes its time row by row, whatever rows share; the weights do not. So a row's attention is measured
apart: in long contexts more rows pay less.
"""

from __future__ import annotations

import logging
import statistics
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from engine.host.measurement_cache import keep, recall

log = logging.getLogger(__name__)

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 63, 96, 128, 192, 256)  # measured, as far as calls go
BUDGET_S = 1.0  # after the first round; the small sizes get the most rounds, since they decide at one request
FIRST_ROUND_S = 4.0  # later sizes are left out, and the curve goes on at its last slope
LEAST_SIZES = 4
ATTENTION_ROWS = 4  # of the calls that are timed before and after the context is longer
ATTENTION_CELLS = 448  # by so much
ATTENTION_S = 0.7  # or by what is prefilled in this time
EXTENSION = 32  # cells at once
REPEATS = 4
MAX_ROUNDS = 9
WARM_UP = 2  # calls whose time is not kept: the first one builds graphs and touches all weights
SPEED_WINDOW = 32  # calls over which the machine's present speed is averaged
SHAPE_WINDOW = (
    64  # calls of one size over which its place on the curve is; the first ones count for more, once
)
# the speed is known
PRIOR_CALLS = 3  # as which what was measured at the start counts
TOLERANCE = 1.1  # a size may take so many times a larger one: kernels take rows by fours. More is noise
RETIMED_S = 1.0  # for sizes that took longer than that
KEPT = "row_times"  # kind of file in the cache
OUTLIER = 3.0  # a call that took so many times the expected was interrupted, and says nothing of T


class LatencyProfile:
    """A curve through measured points, refined by every timed call.

    Between points it is linear; beyond the last it goes on at the last slope. A call's deviation is
    shared by two averages: `speed`, of all sizes, follows clocks and neighbours within a second; one
    for each point follows its own slow change, as of a growing cache.
    """

    def __init__(self, measured: Mapping[int, float], switch_s: float = 0.0, row_cell_s: float = 0.0) -> None:
        """measured: rows -> seconds in a short context, at least one point. switch_s: see `switch`.

        row_cell_s: seconds more for each row and each token that it attends to.
        """
        if not measured or min(measured) < 1 or not all(0 < s < 1e6 for s in measured.values()):
            raise ValueError("a latency profile needs points of at least 1 row and above 0 seconds")
        self._rows = sorted(measured)
        self._seconds = _without_noise([measured[rows] for rows in self._rows])
        self._calls = [PRIOR_CALLS] * len(self._rows)
        self._speed, self._heard = 1.0, PRIOR_CALLS
        self.switch_s, self.row_cell_s = switch_s, row_cell_s
        self.context = 0.0  # tokens that a row of the present calls attends to
        self.last_rows = 0  # of the call before

    @property
    def points(self) -> dict[int, float]:
        """rows -> seconds in a short context, as the curve stands now."""
        return {rows: self._speed * seconds for rows, seconds in zip(self._rows, self._seconds, strict=True)}

    def seconds(self, rows: int) -> float:
        """Expected duration of a call of so many rows; that of the first point below it."""
        return self._speed * (self._curve(rows) + self.row_cell_s * rows * self.context)

    @property
    def switch(self) -> float:
        """Seconds more that a call takes whose rows differ from those of the one before: the runtime then
        builds its graph anew."""
        return self._speed * self.switch_s

    def next_call(self, rows: int) -> float:
        """Expected duration of the next call."""
        return self.seconds(rows) + (self.switch if rows != self.last_rows else 0.0)

    def _curve(self, rows: int) -> float:
        points, seconds = self._rows, self._seconds
        at = bisect_left(points, rows)
        if at == 0 or (at < len(points) and points[at] == rows):
            return seconds[at]
        if len(points) == 1:
            return seconds[0]
        low = min(at, len(points) - 1) - 1
        slope = (seconds[low + 1] - seconds[low]) / (points[low + 1] - points[low])
        return seconds[low] + slope * (rows - points[low])

    def observe(self, rows: int, seconds: float) -> float:
        """Hear the duration of a call; returns the expected one."""
        expected = self.next_call(rows)
        ratio = seconds / expected
        self.last_rows = rows
        if not 1 / OUTLIER < ratio < OUTLIER:
            # A lasting change comes through all the same, bounded a call at a time.
            ratio = min(OUTLIER, max(1 / OUTLIER, ratio))
            self._speed *= ratio ** (0.25 / SPEED_WINDOW)
            return expected
        self._heard = min(self._heard + 1, SPEED_WINDOW)
        self._speed *= ratio ** (1 / self._heard)
        at = bisect_left(self._rows, rows)
        if self._heard == SPEED_WINDOW and at < len(self._rows) and self._rows[at] == rows:
            self._calls[at] = min(self._calls[at] + 1, SHAPE_WINDOW)
            self._seconds[at] *= ratio ** (1 / self._calls[at])
        return expected


def _without_noise(seconds: list[float]) -> list[float]:
    """Of rising sizes. Noise only adds: where a size took longer than larger ones, those are right."""
    least, kept = float("inf"), []
    for one in reversed(seconds):
        kept.append(min(one, TOLERANCE * least))
        least = min(least, one)
    return kept[::-1]


@dataclass(frozen=True, slots=True)
class RowTimer:
    """decode(n): seconds of a call of n rows, which leaves the context as it was. extend(n): seconds of n
    tokens more in the context, which stay; room: how many there may be.
    """

    decode: Callable[[int], float]
    extend: Callable[[int], float]
    room: int


def measure(timer: RowTimer, rows: Iterable[int] = ROWS) -> LatencyProfile:
    """Time all sizes once within FIRST_ROUND_S, those that noise hit again, all in more rounds within
    BUDGET_S; then attention.

    Each size twice in a row: the second call gives T(n), what the first took more is the switch.
    """
    decode = timer.decode
    times: dict[int, list[float]] = {}
    switches: list[float] = []

    def twice(n: int) -> float:
        first, second = decode(n), decode(n)
        times.setdefault(n, []).append(second)
        switches.append(first - second)
        return first + second

    sizes = sorted(rows)
    for _ in range(WARM_UP):
        decode(sizes[0])
    spent = 0.0
    for n in sizes:
        if spent < FIRST_ROUND_S or len(times) < LEAST_SIZES:
            spent += twice(n)
    spent = 0.0
    while spent < RETIMED_S and (noisy := _noisy(times)):
        spent += sum(map(twice, noisy))
    spent = 0.0
    for _ in range(MAX_ROUNDS - 1):
        for n in times:  # the small sizes come first, so they get what is left
            if spent + 2 * statistics.median(times[n]) > BUDGET_S:
                break
            spent += twice(n)
    return LatencyProfile(
        {n: _typical(measured) for n, measured in times.items()},
        max(0.0, statistics.median(switches)),
        _attention(timer, min(ATTENTION_ROWS, sizes[-1])),
    )


def _typical(times: list[float]) -> float:
    """Of a few calls: the lower third, since noise only adds."""
    return sorted(times)[(len(times) - 1) // 3]


def _noisy(times: Mapping[int, list[float]]) -> list[int]:
    """Sizes that seem to take longer than larger ones."""
    sizes = sorted(times)
    measured = [_typical(times[n]) for n in sizes]
    right = _without_noise(measured)
    return [n for n, one, other in zip(sizes, measured, right, strict=True) if one > other]


def _attention(timer: RowTimer, rows: int) -> float:
    """Seconds a row and cell: what a longer context adds to calls of so many rows."""
    if not timer.room:
        return 0.0

    def least() -> float:
        return min(timer.decode(rows) for _ in range(REPEATS))

    before, cells, spent = least(), 0, 0.0
    while cells < min(ATTENTION_CELLS, timer.room) and spent < ATTENTION_S:
        added = min(EXTENSION, timer.room - cells)
        spent += timer.extend(added)
        cells += added
    return max(0.0, least() - before) / (rows * cells)


def kept_profile(key: str, rows: Iterable[int] = ROWS) -> LatencyProfile | None:
    """What measure_once() kept under this key; None when there is nothing for these sizes."""
    kept = recall(KEPT, key)
    try:
        if kept is None or kept["sizes"] != list(rows):
            return None
        points = {int(n): float(s) for n, s in kept["seconds"].items()}
        return LatencyProfile(points, float(kept["switch"]), float(kept["row_cell"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("T(n) is measured again, since what was kept is damaged: %s", error)
        return None


def measure_once(
    key: str, timer: AbstractContextManager[RowTimer], rows: Iterable[int] = ROWS
) -> LatencyProfile:
    """The profile kept under this key, or a new one, which is kept.

    timer is entered only when there is something to measure.
    """
    wanted = tuple(rows)
    if (known := kept_profile(key, wanted)) is not None:
        return known
    with timer as entered:
        profile = measure(entered, wanted)
    content = {
        "sizes": wanted,
        "seconds": profile.points,
        "switch": profile.switch_s,
        "row_cell": profile.row_cell_s,
    }
    keep(KEPT, key, content)
    return profile
