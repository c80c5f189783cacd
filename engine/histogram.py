"""Counts by size, in the form that Prometheus takes."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate


class Histogram:
    """How many observed values were at most each bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def snapshot(self, name: str) -> dict[str, float]:
        """`name_bucket_BOUND` for each bound and inf, cumulative, and `name_sum`."""
        labels = [*(f"{bound:g}" for bound in self._bounds), "inf"]
        buckets = zip(labels, accumulate(self._counts), strict=True)
        return {**{f"{name}_bucket_{label}": float(n) for label, n in buckets}, f"{name}_sum": self._sum}
