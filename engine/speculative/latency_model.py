"""T(n): the seconds of one decode call of n rows, measured where the engine runs.

Rows of a call share the work of reading the weights, but not attention. So attention is measured separately:
in long contexts additional rows pay less.
"""

from __future__ import annotations

import logging
import statistics
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from engine.host.measurement_cache import read_measurement, write_measurement
from engine.host.other_load import OtherLoad

log = logging.getLogger(__name__)

# Sizes that are measured.
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 63, 96, 128, 192, 256)
BUDGET_S = 1.0  # of the rounds after the first; small sizes get the most rounds, as they matter most
FIRST_ROUND_S = 8.0  # sizes not reached in this time are extrapolated
# The first of ROWS, timed whatever they take: kernels take rows by fours, so that T(8) may be less than T(5).
LEAST_SIZES = 8
ATTENTION_ROWS = 4  # rows of the calls that measure attention, in a short and in a longer context
ATTENTION_CELLS = 448  # tokens by which the context is extended for it
ATTENTION_S = 0.7  # or as many as are prefilled in this time
EXTENSION = 32  # tokens prefilled in one call
REPEATS = 4
MAX_ROUNDS = 9
WARM_UP = 2  # calls that are not counted: the first one builds the graph and touches all weights
SPEED_WINDOW = 32  # calls over which the machine's current speed is averaged
# Calls of one size over which its place on the curve is averaged; once the speed is known, the first ones
# count for more.
SHAPE_WINDOW = 64
PRIOR_CALLS = 3  # weight of the measurement at the start, in calls
SUSPECT = 1.1  # sizes that take this factor longer than a larger one are timed again: it may be noise
TOLERANCE = 1.8  # beyond this it is: kernels that take rows by fours need 1.73 times as long for 7 as for 8
PIECE = 4  # rows that kernels take together
RETIMED_S = 1.0  # time for repeating measurements beyond SUSPECT
CACHE_KIND = "row_times"  # kind of file in the cache
CACHE_FORMAT = 2  # others were measured in another way
OUTLIER = 3.0  # factor from the expected time beyond which a call counts as interrupted


class LatencyProfile:
    """A curve through measured points, refined by every timed call.

    It is linear between points. Beyond the last one it goes on with the mean slope of the upper half of the
    sizes: kernels take rows by fours and eights, so that the last two points may be one step, or none.
    Deviations update two averages: a speed factor for all sizes, which follows clock rates and other
    processes within a second, and one for each point, which changes slowly.
    """

    def __init__(
        self,
        measured: Mapping[int, float],
        switch_s: float = 0.0,
        row_cell_s: float = 0.0,
        settle_s: float = 0.0,
    ) -> None:
        """measured: rows -> seconds in a short context, at least one point. switch_s, settle_s: additional
        seconds of the first and of the second call with another number of rows than before.

        row_cell_s: additional seconds for each row and each token that it attends to.
        """
        if not measured or min(measured) < 1 or not all(0 < s < 1e6 for s in measured.values()):
            raise ValueError("a latency profile needs points of at least 1 row and above 0 seconds")
        self._rows = sorted(measured)
        self._seconds = _without_noise(self._rows, [measured[rows] for rows in self._rows], TOLERANCE)
        self._calls = [PRIOR_CALLS] * len(self._rows)
        self._speed, self._observed = 1.0, PRIOR_CALLS
        self.switch_s, self.row_cell_s, self.settle_s = switch_s, row_cell_s, settle_s
        self.context = 0.0  # tokens that a row of the next call attends to, on average
        self._last_rows = 0  # of the previous call
        self._settled = True  # the call before it had as many rows

    @property
    def points(self) -> dict[int, float]:
        """The curve now: rows -> seconds in a short context."""
        return {rows: self._speed * seconds for rows, seconds in zip(self._rows, self._seconds, strict=True)}

    def seconds(self, rows: int) -> float:
        """Expected duration of a call of so many rows, at least that of the first point."""
        return self._speed * (self._curve(rows) + self.row_cell_s * rows * self.context)

    @property
    def switch(self) -> float:
        """Additional seconds of a call whose number of rows differs from the previous one: llama.cpp rebuilds
        its graph."""
        return self._speed * self.switch_s

    def next_call(self, rows: int) -> float:
        """Expected duration of the next call.

        The second call with as many rows has a cost of its own on CUDA, which then records the graph; later
        ones replay it.
        """
        if rows != self._last_rows:
            return self.seconds(rows) + self.switch
        return self.seconds(rows) + (0.0 if self._settled else self._speed * self.settle_s)

    def called(self, rows: int) -> None:
        """Note a call of so many rows, and nothing of its time."""
        self._settled = rows == self._last_rows
        self._last_rows = rows

    def _curve(self, rows: int) -> float:
        points, seconds = self._rows, self._seconds
        at = bisect_left(points, rows)
        if at == 0 or (at < len(points) and points[at] == rows):
            return seconds[at]
        if len(points) == 1:
            return seconds[0]
        if at == len(points):
            half = min(bisect_left(points, points[-1] / 2), at - 2)
            slope = (seconds[-1] - seconds[half]) / (points[-1] - points[half])
            return seconds[-1] + max(0.0, slope) * (rows - points[-1])
        slope = (seconds[at] - seconds[at - 1]) / (points[at] - points[at - 1])
        return seconds[at - 1] + slope * (rows - points[at - 1])

    def observe(self, rows: int, seconds: float) -> float:
        """Update the curve with the duration of a call; returns the expected duration."""
        expected = self.next_call(rows)
        ratio = seconds / expected
        self.called(rows)
        if not 1 / OUTLIER < ratio < OUTLIER:
            # A lasting change must still arrive, at a bounded rate.
            ratio = min(OUTLIER, max(1 / OUTLIER, ratio))
            self._speed *= ratio ** (0.25 / SPEED_WINDOW)
            return expected
        self._observed = min(self._observed + 1, SPEED_WINDOW)
        self._speed *= ratio ** (1 / self._observed)
        at = bisect_left(self._rows, rows)
        if self._observed == SPEED_WINDOW and at < len(self._rows) and self._rows[at] == rows:
            self._calls[at] = min(self._calls[at] + 1, SHAPE_WINDOW)
            self._seconds[at] *= ratio ** (1 / self._calls[at])
        return expected


def _without_noise(sizes: list[int], seconds: list[float], most: float) -> list[float]:
    """Times of rising sizes, each lowered to `most` times that of a larger one: noise only adds time.

    Up to PIECE rows to SUSPECT times, as no kernel has a reason to be slower with fewer of them.
    """
    least, lowered = float("inf"), []
    for rows, one in zip(reversed(sizes), reversed(seconds), strict=True):
        lowered.append(min(one, (most if rows > PIECE else SUSPECT) * least))
        least = min(least, one)
    return lowered[::-1]


@dataclass(frozen=True, slots=True)
class RowTimer:
    """decode(n): times a call of n rows, and leaves the context as it was. extend(n): times a call that adds
    n tokens to the context. Both return seconds. capacity: tokens that extend() may add in all.
    """

    decode: Callable[[int], float]
    extend: Callable[[int], float]
    capacity: int


def measure(timer: RowTimer, rows: Iterable[int] = ROWS) -> LatencyProfile:
    """Time all sizes once within FIRST_ROUND_S, noisy ones again, then all in more rounds within BUDGET_S;
    then attention.

    Each size is timed twice in a row, and once more if the second call took longer than the first, as it does
    on a device that then records the graph. The last call gives T(n), what the others took more gives the
    costs of a change.
    """
    decode = timer.decode
    times: dict[int, list[float]] = {}
    switches: list[float] = []
    settles: list[float] = []

    def in_a_row(n: int) -> float:
        first, second = decode(n), decode(n)
        third = decode(n) if second > first else 0.0
        last = third or second
        times.setdefault(n, []).append(last)
        switches.append(first - last)
        settles.append(second - last)
        return first + second + third

    sizes = sorted(rows)
    for _ in range(WARM_UP):
        decode(sizes[0])
    spent = 0.0
    for n in sizes:
        if spent < FIRST_ROUND_S or len(times) < LEAST_SIZES:
            spent += in_a_row(n)
    spent = 0.0
    while spent < RETIMED_S and (noisy := _noisy(times)):
        spent += sum(map(in_a_row, noisy))
    spent = 0.0
    for _ in range(MAX_ROUNDS - 1):
        for n in times:  # the small sizes come first, so they get what is left
            if spent + 2 * statistics.median(times[n]) > BUDGET_S:
                break
            spent += in_a_row(n)
    return LatencyProfile(
        {n: _typical(measured) for n, measured in times.items()},
        max(0.0, statistics.median(switches)),
        _attention(timer, min(ATTENTION_ROWS, sizes[-1])),
        max(0.0, statistics.median(settles)),
    )


def _typical(times: list[float]) -> float:
    """The lower tertile of a few calls, since noise only adds time."""
    return sorted(times)[(len(times) - 1) // 3]


def _noisy(times: Mapping[int, list[float]]) -> list[int]:
    """Sizes that seem to take longer than larger ones."""
    sizes = sorted(times)
    measured = [_typical(times[n]) for n in sizes]
    right = _without_noise(sizes, measured, SUSPECT)
    return [n for n, one, other in zip(sizes, measured, right, strict=True) if one > other]


def _attention(timer: RowTimer, rows: int) -> float:
    """Seconds a row and cell: what a longer context adds to calls of so many rows."""
    if not timer.capacity:
        return 0.0

    def least() -> float:
        return min(timer.decode(rows) for _ in range(REPEATS))

    before, cells, spent = least(), 0, 0.0
    while cells < min(ATTENTION_CELLS, timer.capacity) and spent < ATTENTION_S:
        added = min(EXTENSION, timer.capacity - cells)
        spent += timer.extend(added)
        cells += added
    return max(0.0, least() - before) / (rows * cells)


def cached_profile(key: str, rows: Iterable[int] = ROWS) -> LatencyProfile | None:
    """The cached profile of this key, None if there is none for these sizes."""
    cached = read_measurement(CACHE_KIND, key)
    try:
        if cached is None or cached["sizes"] != list(rows) or cached.get("format") != CACHE_FORMAT:
            return None
        points = {int(n): float(s) for n, s in cached["seconds"].items()}
        return LatencyProfile(
            points, float(cached["switch"]), float(cached["row_cell"]), float(cached["settle"])
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("T(n) is measured again, since the cached times are damaged: %s", error)
        return None


def measure_once(
    key: str, timer: AbstractContextManager[RowTimer], rows: Iterable[int] = ROWS
) -> LatencyProfile:
    """The cached profile of this key, or a new one, which is cached.

    timer is entered only if something must be measured.
    """
    wanted = tuple(rows)
    if (cached := cached_profile(key, wanted)) is not None:
        return cached
    with timer as entered:
        load = OtherLoad()
        profile = measure(entered, wanted)
        others = load.share()
    content = {
        "format": CACHE_FORMAT,
        "sizes": wanted,
        "seconds": profile.points,
        "switch": profile.switch_s,
        "row_cell": profile.row_cell_s,
        "settle": profile.settle_s,
    }
    write_measurement(CACHE_KIND, key, content, others)
    return profile
