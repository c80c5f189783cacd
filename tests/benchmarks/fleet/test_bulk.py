"""Bulk lines through many workers: the simulation keeps to what its costs allow, and names what is full."""

from __future__ import annotations

import pytest

from docs.measured.figures import read
from tests.benchmarks.fleet import bulk

pytestmark = pytest.mark.slow


COSTS = bulk.Costs(redis_s=1e-4, leader_s=2e-4, store_s=5e-5)


def test_few_workers_are_never_held_up_and_many_fill_what_costs_most() -> None:
    few, many = bulk.simulate(10, COSTS), bulk.simulate(60, COSTS)
    assert few.lines / bulk.SIMULATED_S == pytest.approx(10 * bulk.PER_S, rel=0.02)
    assert many.lines / bulk.SIMULATED_S == pytest.approx(1 / COSTS.leader_s, rel=0.02)
    assert max(many.seconds, key=many.seconds.__getitem__) == "io worker"
    assert many.seconds["io worker"] == pytest.approx(bulk.SIMULATED_S, rel=0.02)


def test_the_limit_is_named() -> None:
    table = {int(row[0]): row[-1] for row in bulk.rows(COSTS)}
    assert [table[workers] for workers in (1, 20, 50, 500)] == [
        "the workers",
        "the workers",
        *["io worker"] * 2,
    ]


def test_the_recorded_table_of_bulk_is_what_is_simulated() -> None:
    for table in (table for table in read() if table.name == bulk.NAME):
        assert table.rows == list(bulk.rows(bulk.Costs(**table.data)))


@pytest.mark.thorough
@pytest.mark.stack
def test_what_a_line_costs_can_be_measured() -> None:
    costs = bulk.measure(600)
    assert 0 < costs.store_s < costs.redis_s < costs.leader_s < 0.1
