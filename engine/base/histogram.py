"""Counts by size, in the form that Prometheus takes."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Distribution:
    """counts: of values up to each bound, and last of all values; sum: of the values."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class Histogram:
    """How many observed values were at most each bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def distribution(self) -> Distribution:
        return Distribution(self._bounds, tuple(accumulate(self._counts)), self._sum)
