"""How many jobs are sent before keys take turns."""

from __future__ import annotations

import pytest

from tasks.batches.capacity import SLOTS_UNSEEN, Capacity
from tasks.batches.window_sizes import MOST_LINES
from tasks.records.batch_work import QueueCounts
from tasks.store.workers import WorkerInfo


def worker(model: str, slots: int) -> WorkerInfo:
    return WorkerInfo(f"{model}:{slots}", model, 512, slots, 1, "h", 0.0)


def found(**in_flight: int) -> QueueCounts:
    return {queue: {"o": count} for queue, count in in_flight.items()}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("fills", [1, 2])
def test_it_is_what_live_workers_can_take(fills: int) -> None:
    capacity = Capacity(fills, 0.2)
    assert capacity.update([]) == {"": fills * SLOTS_UNSEEN}
    workers = [worker("a", 4), worker("a", 8), worker("b", 1)]
    assert capacity.update(workers) == {"": fills * 16, "a": fills * 15, "b": fills}
    assert capacity.of("a") == fills * 15
    assert capacity.of("none serves it") == capacity.of("") == fills * 16
    assert capacity.update([worker("b", 1)]) == {"": fills, "b": fills}, "the others have gone"


def after_rounds(ended: int, every_s: float, most_s: float = 0.2) -> int:
    """Of one worker of four slots while so many jobs end between two rounds."""
    clock = Clock()
    capacity = Capacity(1, most_s, clock)
    for _ in range(100):
        capacity.update([worker("m", 4)])
        clock.now += every_s
        capacity.note(found(m=100 - ended), {"m": 100})
    return capacity.update([worker("m", 4)])["m"]


def test_short_jobs_have_place_for_what_ends_until_the_next_rounds() -> None:
    assert after_rounds(4, 5.0) == 5, "jobs of five seconds that end together"
    assert after_rounds(4, 1.0) == 5
    assert after_rounds(20, 0.05) in (44, 45), "400 a second, for two rounds"
    assert after_rounds(100, 0.25) in (84, 85), "400 a second, for as long as may be sent ahead"
    assert after_rounds(100, 0.25, most_s=0.6) in (204, 205), "400 a second, for two rounds of a slow leader"


def after_short_jobs() -> tuple[Capacity, Clock]:
    """Of which 50 ended in each round of 50 ms."""
    clock = Clock()
    capacity = Capacity(1, 0.2, clock)
    for _ in range(20):
        clock.now += 0.05
        capacity.note(found(m=50), {"m": 100})
    return capacity, clock


def test_windows_grow_with_what_has_ended() -> None:
    capacity, _ = after_short_jobs()
    capacity.update([worker("m", 4)])
    assert capacity.crew("m").window == MOST_LINES, "a second of work would be more"
    slow = Capacity(1, 0.2)
    slow.update([worker("m", 4)])
    assert slow.crew("m").window == 4, "its slots"


def test_what_short_jobs_have_ends_with_them() -> None:
    capacity, clock = after_short_jobs()
    assert capacity.update([worker("m", 4)])["m"] > 50
    clock.now += 20
    capacity.note(found(m=100), {})
    assert capacity.update([worker("m", 4)]) == {"": 5, "m": 5}


def test_where_a_lower_priority_waits_one_place_in_eight_is_left_to_it() -> None:
    workers = [worker("a", 8), worker("b", 16), worker("c", 4)]
    capacity = Capacity(1, 0.2)
    assert capacity.update(workers) == {"": 35, "a": 10, "b": 20, "c": 5}
    assert capacity.update(workers, waiting=["b"]) == {"": 30, "a": 10, "b": 17, "c": 5}
    assert capacity.update(workers, waiting=["c"]) == {"": 30, "a": 10, "b": 20, "c": 5}, "too few slots"
    assert capacity.update(workers, waiting=[""]) == {"": 30, "a": 8, "b": 17, "c": 5}
    assert capacity.update([], waiting=["a", ""]) == {"": SLOTS_UNSEEN}


def test_nothing_is_sent_ahead_of_those_that_wait() -> None:
    capacity, _ = after_short_jobs()
    assert capacity.update([worker("m", 8)])["m"] > 50
    assert capacity.update([worker("m", 8)], waiting=["m"])["m"] == 8
    assert capacity.in_flight == ["m"]
    capacity.note(found(m=100), {"m": 0})
    assert capacity.in_flight == []
