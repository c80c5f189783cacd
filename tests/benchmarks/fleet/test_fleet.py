"""The model of many workers against queues whose answer is known, and the table in the documentation."""

from __future__ import annotations

import heapq
import json
import random
from dataclasses import asdict
from math import factorial
from pathlib import Path
from statistics import fmean

import pytest
import simpy

from docs.measured.figures import read
from tasks.records.job import Priority
from tests.benchmarks.fleet import __main__ as fleet
from tests.benchmarks.fleet.__main__ import Measured
from tests.benchmarks.fleet.model import Fleet, Load, Request, simulate

pytestmark = pytest.mark.slow

JOBS = 20_000
MANY_JOBS = 60_000  # waits depend on each other: so many are needed for a mean that is close
CLOSE = 0.1


def erlang_c(servers: int, load: float) -> float:
    """The chance that all of M/M/c's servers are busy; load in servers."""
    full = load**servers / factorial(servers) * servers / (servers - load)
    return full / (sum(load**n / factorial(n) for n in range(servers)) + full)


def waits_in_order(servers: int, per_s: float, jobs: int) -> list[float]:
    """Of G/G/servers, first come first served, from the same numbers that the model draws."""
    chance, free, at, waits = random.Random(1), [0.0] * servers, 0.0, []
    for _ in range(jobs):
        at += chance.expovariate(per_s)
        begins = max(at, heapq.heappop(free))
        heapq.heappush(free, begins + chance.expovariate(1.0))
        waits.append(begins - at)
    return waits


@pytest.mark.parametrize(("workers", "slots"), [(8, 1), (1, 8), (2, 4)])
def test_slots_that_do_not_slow_each_other_are_servers_of_one_queue(workers: int, slots: int) -> None:
    """Whoever has them, as long as no worker claims what it cannot run yet."""
    ended = simulate(workers, slots, 0, lambda _: 1.0, Load(interactive_per_s=6.8), JOBS)
    waits = [request.queue_s for request in sorted(ended, key=lambda request: request.created)]
    known = waits_in_order(8, 6.8, JOBS)[: JOBS // 2]  # the last ones had not all ended
    assert waits[: JOBS // 2] == pytest.approx(known, abs=1e-6)


def test_their_waits_are_those_of_m_m_c() -> None:
    ended = simulate(2, 2, 0, lambda _: 1.0, Load(interactive_per_s=2.0), MANY_JOBS)
    waits = [request.queue_s for request in ended]
    assert fmean(wait > 1e-9 for wait in waits) == pytest.approx(erlang_c(4, 2.0), rel=CLOSE)
    assert fmean(waits) == pytest.approx(erlang_c(4, 2.0) / (4 - 2.0), rel=CLOSE)


def test_an_engine_of_constant_speed_shared_by_all_is_m_m_1_processor_sharing() -> None:
    ended = simulate(1, 10_000, 0, lambda running: 1 / running, Load(interactive_per_s=0.5), JOBS)
    assert fmean(r.ended - r.created for r in ended) == pytest.approx(1 / (1 - 0.5), rel=CLOSE)
    assert not any(r.queue_s for r in ended)


def test_a_request_alone_takes_its_work_and_four_share_a_quarter_each() -> None:
    load = Load(interactive_per_s=0.0, bulk_per_s=1e-3, lines=4, work_s=lambda _: 2.0)
    alone = simulate(4, 1, 0, lambda running: 1 / running, load, 4)
    assert [r.ended - r.begun for r in alone] == pytest.approx([2.0] * 4)
    shared = simulate(1, 4, 0, lambda running: 1 / running, load, 4)
    assert [r.ended - r.begun for r in shared] == pytest.approx([8.0] * 4)


def test_interactive_requests_overtake_bulk_ones() -> None:
    load = Load(interactive_per_s=1.0, bulk_per_s=2.8, lines=200)
    ended = simulate(1, 4, 0, lambda _: 1.0, load, 5_000)
    assert _mean(ended, Priority.INTERACTIVE) < 1.0 < 10.0 < _mean(ended, Priority.BULK)


def test_a_short_batch_does_not_wait_for_a_long_one_of_another_owner() -> None:
    env = simpy.Environment()
    simulated = Fleet(env, workers=1, slots=4, lookahead=0, speed=lambda _: 1.0)
    for owner, lines in (("long", 2000), ("short", 20)):
        for _ in range(lines):
            simulated.submit(Request(Priority.BULK, 1.0, env.now, owner))
    env.run(until=50.0)
    ends = [request.owner for request in simulated.ended]
    assert ends.count("short") == 20
    assert len(ends) == 50 * 4 - 4, "the slots were never empty"


def _mean(requests: list[Request], priority: Priority) -> float:
    return fmean(r.queue_s for r in requests if r.priority is priority)


def test_the_recorded_table_is_what_is_simulated() -> None:
    for table in (table for table in read() if table.name == fleet.NAME):
        measured = Measured(**table.data)
        assert table.rows == list(fleet.simulated(measured))
        assert table.notes == [fleet.stands_on(measured)]


def test_a_fleet_of_ten_ends_ten_times_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "JOBS", 5000)
    monkeypatch.setattr(fleet, "LINES", 5)  # many small batches: so few jobs are of ten large ones, at random
    measured = Measured([1.0, 2.0], {"2": 1.4, "16": 5.0}, 500.0, 0.001, 2000)
    one, ten, *_ = fleet.simulated(measured)
    assert float(ten[1]) == pytest.approx(10 * float(one[1]), rel=0.1)
    assert float(one[1]) == pytest.approx((fleet.INTERACTIVE + fleet.BULK) * measured.worker_per_s, rel=0.1)
    assert "a request takes 1.50 s alone and 7.50 s beside 15 others" in fleet.stands_on(measured)


@pytest.mark.thorough
@pytest.mark.stack
def test_what_it_stands_on_can_be_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In small, by the real engine and the real stack."""
    prompts, questions = tmp_path / "prompts.txt", tmp_path / "questions.csv"
    prompts.write_text("Name a colour.\n", encoding="utf-8")
    questions.write_text("question\nWhat is rain?\nWhat is snow?\n", encoding="utf-8")
    small = {"PROMPTS": prompts, "QUESTIONS": questions, "COMPANY": (2,), "OUTPUT_TOKENS": (2,)}
    for name, value in {**small, "JOBS_MEASURED": 40, "WARM_UP_JOBS": 4}.items():
        monkeypatch.setattr(fleet, name, value)
    found = fleet.measure()
    assert len(found.alone_s) == 3
    assert min(found.alone_s) > 0
    assert found.slowdown.keys() == {"2"}
    assert min(found.slowdown["2"], found.submissions_per_s, found.redis_s_per_job) > 0
    assert Measured(**json.loads(json.dumps(asdict(found)))) == found
