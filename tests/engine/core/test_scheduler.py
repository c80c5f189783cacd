"""Who runs: admission, ends, recovery. No model."""

from __future__ import annotations

import random

import pytest

from tests.engine.helpers.steps import Steps, words

# Admission


def test_admission_is_by_cells_and_nobody_overtakes() -> None:
    steps = Steps(100, lane=0)
    first = steps.add("first", words((1, 50)), max_tokens=10)
    steps.add("too big for now", words((2, 40)), max_tokens=10)
    steps.add("would fit", words((3, 5)), max_tokens=5)
    steps.step()
    assert steps.running == ["first"]
    steps.end(first)
    steps.step()
    assert steps.running == ["too big for now", "would fit"]
    steps.finish()


@pytest.mark.parametrize(("max_tokens", "running"), [(31, ["a"]), (30, ["a", "b"])])
def test_the_shared_cache_reserves_cells_for_the_whole_output(max_tokens: int, running: list[str]) -> None:
    """Two that fit today but not at their ends are not run together: nothing is ever thrown out."""
    steps = Steps(100, lane=0, sharing=False)
    steps.add("a", words((1, 10)), max_tokens=50)
    steps.add("b", words((2, 10)), max_tokens=max_tokens)
    for _ in range(20):
        steps.step()
        assert steps.running == running
    steps.finish()
    assert sorted(steps.ended) == ["a", "b"]


@pytest.mark.parametrize("lane", [0, 100])
def test_slots_bound_what_runs(lane: int) -> None:
    steps = Steps(lane=lane, slots=2)
    sequences = [steps.add(str(i), words((i, 3)), max_tokens=3) for i in range(5)]
    steps.step()
    assert steps.running == ["0", "1"]
    assert steps.scheduler.waiting == 3
    steps.finish()
    assert steps.ended == ["0", "1", "2", "3", "4"]
    assert [s.admitted_at for s in sequences] == [1, 1, 4, 4, 7]


def test_priority_comes_before_arrival() -> None:
    steps = Steps(slots=1)
    for name, priority in [("bulk 1", 5), ("bulk 2", 5), ("urgent 1", 0), ("middle", 2), ("urgent 2", 0)]:
        steps.add(name, words((1, 3)), max_tokens=2, priority=priority)
    steps.finish()
    assert steps.ended == ["urgent 1", "urgent 2", "middle", "bulk 1", "bulk 2"]


def test_a_running_request_is_not_displaced_by_an_urgent_one() -> None:
    steps = Steps(slots=1)
    steps.add("bulk", words((1, 3)), priority=5)
    steps.step()
    steps.add("urgent", words((2, 3)), priority=0)
    steps.finish()
    assert steps.ended == ["bulk", "urgent"]


@pytest.mark.parametrize(("cached_tokens", "alone"), [(0, False), (100, False), (100, True)])
def test_the_largest_request_the_shared_cache_can_hold_runs(cached_tokens: int, alone: bool) -> None:
    steps = Steps(100, lane=0, cached_tokens=cached_tokens, alone=alone)
    for i in range(3):
        steps.add(str(i), words((i, 60)), max_tokens=40)
    steps.finish()
    assert steps.ended == ["0", "1", "2"]


@pytest.mark.parametrize(("max_tokens", "layout"), [(10, "lane"), (11, "shared")])
def test_a_request_runs_in_a_lane_if_it_fits_to_its_end(max_tokens: int, layout: str) -> None:
    steps = Steps(lane=50)
    steps.add("a", words((1, 40)), max_tokens=max_tokens)
    steps.step()
    assert steps.places == {"a": (layout, 0)}
    steps.finish()


def test_lanes_are_taken_from_the_lowest_on() -> None:
    steps = Steps(lane=50)
    for i in range(4):
        steps.add(str(i), words((i, 100 if i == 1 else 5)))
    steps.step()
    assert steps.places == {"0": ("lane", 0), "1": ("shared", 0), "2": ("lane", 1), "3": ("lane", 2)}
    steps.finish()


def test_a_long_request_that_waits_for_cells_is_not_overtaken_by_those_with_a_lane() -> None:
    steps = Steps(200, lane=50, slots=3)
    steps.add("long", words((1, 120)), max_tokens=10)
    steps.add("longer", words((2, 120)), max_tokens=10)
    steps.add("short", words((3, 5)))
    steps.step()
    assert steps.running == ["long"]
    steps.finish()
    assert steps.ended[0] == "long"


def test_where_cells_must_lie_in_order_one_sequence_at_a_time_has_the_shared_cache() -> None:
    steps = Steps(1000, lane=50, alone=True)
    for name, length in [("long", 100), ("short", 5), ("longer", 110)]:
        steps.add(name, words((len(name), length)))
    steps.step()
    assert steps.running == ["long", "short"]
    steps.finish()
    assert set(steps.ended) == {"long", "short", "longer"}


# Ends and failures


def test_a_waiting_request_can_end() -> None:
    steps = Steps(slots=1)
    steps.add("a", words((1, 3)))
    waiting = steps.add("b", words((2, 3)))
    steps.add("c", words((3, 3)))
    steps.step()
    steps.end(waiting)
    assert steps.scheduler.waiting == 1
    steps.finish()
    assert steps.ended == ["b", "a", "c"]


@pytest.mark.parametrize("lane", [0, 100])
def test_recomputed_requests_run_alone_one_after_the_other(lane: int) -> None:
    steps = Steps(lane=lane)
    a = steps.add("a", words((1, 5)), max_tokens=9)
    b = steps.add("b", words((2, 5)), max_tokens=9)
    steps.step()
    steps.step()
    steps.step(fails=True)
    assert (a.computed, b.computed, a.failures, b.failures) == (0, 0, 1, 1)
    assert (a.length, b.length) == (7, 7), "tokens already emitted stand"
    c = steps.add("c", words((3, 5)), max_tokens=9)
    assert [sorted(s.request.id for s in steps.step().sequences) for _ in range(3)] == [
        ["a"],
        ["b"],
        ["a", "b", "c"],
    ]
    assert (a.length, b.length, c.length) == (9, 9, 6)
    steps.finish()


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("lanes", [False, True])
@pytest.mark.slow
def test_random_arrivals_and_ends(lanes: bool, alone: bool, failing: bool) -> None:
    """Whatever comes and goes: no overflow, no leak, no standstill, and everything ends."""
    for seed in range(8):
        rng = random.Random(seed)
        capacity = rng.choice([64, 100, 200, 400])
        steps = Steps(
            capacity,
            lane=rng.choice([20, 40, capacity]) if lanes else 0,
            slots=rng.randint(1, 7),
            chunk_rows=rng.choice([7, 16, 64, 128]),
            sharing=rng.random() < 0.8,
            cached_tokens=rng.choice([0, capacity // 4, capacity]),
            movable=rng.random() < 0.8,
            trees=rng.random() < 0.7,
            alone=alone,
            drafts=rng,
        )
        if failing:
            steps.memory.refuses = steps.streams.refuses = lambda rng=rng: rng.random() < 0.2  # type: ignore[misc]
        total = 40
        for i in range(total):
            prompt = words((rng.randint(1, 3), rng.randint(1, 30)), (rng.randint(1, 3), rng.randint(1, 25)))
            room = capacity - len(prompt)
            max_tokens = room if rng.random() < 0.1 else rng.randint(1, min(room, 40))
            steps.add(str(i), prompt, max_tokens, priority=rng.randint(0, 2))
            for _ in range(rng.choice([0, 0, 1, 5])):
                steps.step(fails=failing and rng.random() < 0.1)
                if rng.random() < 0.1:
                    steps.end(rng.choice([*steps.scheduler.sequences()] or [steps.add("x", [1])]))
        steps.finish()
        assert len(set(steps.ended)) == len(steps.ended)
        assert {str(i) for i in range(total)} <= set(steps.ended)
        assert steps.memory.used == 0, "what lanes hold is checked at each step"


# Left in lanes


def test_a_request_goes_on_from_the_cells_that_the_last_one_left_in_its_lane() -> None:
    steps = Steps(cached_tokens=0)
    steps.add("a", words((1, 60), (2, 4)), max_tokens=2)
    steps.finish()
    steps.streams.calls.clear()
    b = steps.add("b", words((1, 60), (3, 5)), max_tokens=30)
    steps.step()
    assert (b.cached, b.shared) == (60, 60)
    assert {call[0] for call in steps.streams.calls} == {"truncate"}, "nothing is copied"
    steps.finish()


def test_the_answer_of_the_turn_before_is_left_too() -> None:
    steps = Steps(cached_tokens=0)
    a = steps.add("a", words((1, 40)), max_tokens=9)
    steps.finish()
    b = steps.add("b", [*a.tokens[: a.length].tolist(), *words((2, 5))], max_tokens=2)
    steps.finish()
    assert b.cached == a.length - 1, "the last token has no cell"


def test_what_a_lane_gave_counts_as_used_in_the_prefix_cache() -> None:
    steps = Steps(cached_tokens=100)
    steps.add("a", words((1, 40)), max_tokens=2)
    steps.finish()
    steps.add("b", words((1, 40), (2, 3)), max_tokens=2)
    steps.finish()
    for word in (3, 4, 5):
        steps.add(str(word), words((word, 40)), max_tokens=2)
        steps.finish()
    assert words((1, 40)) in steps.kept


def test_without_sharing_nothing_is_left_in_lanes() -> None:
    steps = Steps(sharing=False)
    steps.add("a", words((1, 40)), max_tokens=2)
    steps.finish()
    assert steps.streams.held() == {}
