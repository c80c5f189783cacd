"""Latency profiles that stay as they are, however long real calls take."""

from __future__ import annotations

from engine.speculative.latency_model import LatencyProfile


class FixedProfile(LatencyProfile):
    """T(n) that hears nothing new."""

    def observe(self, rows: int, seconds: float) -> float:
        expected = self.next_call(rows)
        self.called(rows)
        return expected


def flat() -> FixedProfile:
    """As on a GPU, where 64 rows take hardly longer than one."""
    return FixedProfile({1: 0.010, 64: 0.011})
