"""The benchmark of streaming runs, and what it measures is no more than a fraction of a second."""

from __future__ import annotations

import pytest

from tests.benchmarks.queue import streaming


@pytest.mark.stack
def test_it_measures() -> None:
    one, four = streaming.measure((1, 4), tokens=10, rate=5.0)
    for added in (one, four):
        assert 0 < added.p50_ms <= added.p95_ms <= added.p99_ms
        assert added.p50_ms < 1000
    assert four.tokens_per_s > one.tokens_per_s
    assert four.line().startswith("  4 streams, ")
