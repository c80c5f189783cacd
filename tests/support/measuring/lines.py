"""What became of the lines of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable


def lost_and_doubled(found: Iterable[str], expected: Collection[str]) -> tuple[int, int]:
    """How many expected custom_ids were not found, and how many were found beyond one of each."""
    times = Counter(found)
    lost = sum(not times[name] for name in expected)
    return lost, times.total() - (len(expected) - lost)
