"""Who runs and with which rows: admission, priorities, chunks, sharing, recovery. No model."""

from __future__ import annotations

import random

import pytest

from engine.core.prefix_cache import MIN_SHARED
from engine.core.scheduler import Span
from tests.engine.helpers.steps import Steps, words

# Admission


def test_admission_is_by_cells_and_nobody_overtakes() -> None:
    steps = Steps(100)
    first = steps.add("first", words((1, 50)), max_tokens=10)
    steps.add("too big for now", words((2, 40)), max_tokens=10)
    steps.add("would fit", words((3, 5)), max_tokens=5)
    steps.step()
    assert steps.running == ["first"]
    steps.end(first)
    steps.step()
    assert steps.running == ["too big for now", "would fit"]
    steps.finish()


def test_cells_are_reserved_for_the_whole_output() -> None:
    """Two that fit today but not at their ends are not run together: nothing is ever thrown out."""
    steps = Steps(100, sharing=False)
    steps.add("a", words((1, 10)), max_tokens=50)
    steps.add("b", words((2, 10)), max_tokens=31)
    for _ in range(20):
        steps.step()
        assert steps.running == ["a"]
    steps.finish()
    exact = Steps(100, sharing=False)
    exact.add("a", words((1, 10)), max_tokens=50)
    exact.add("b", words((2, 10)), max_tokens=30)
    exact.step()
    assert exact.running == ["a", "b"]
    exact.finish()


def test_slots_bound_what_runs() -> None:
    steps = Steps(slots=2)
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


def test_when_busy_others_wait_rather_than_fill_more_cells() -> None:
    steps = Steps(busy=(2, 100), sharing=False)
    a = steps.add("a", words((1, 60)), max_tokens=60)
    steps.add("b", words((2, 60)), max_tokens=60)
    steps.add("c", words((3, 5)), max_tokens=5)
    steps.step()
    assert steps.running == ["a", "b"], "so few run however many cells they hold; one more would be over"
    steps.end(a)
    steps.step()
    assert steps.running == ["b", "c"]
    steps.finish()
    small = Steps(busy=(2, 40), sharing=False)
    for name in ("a", "b", "c", "d"):
        small.add(name, words((1, 8)), max_tokens=5)
    small.step()
    assert small.running == ["a", "b", "c"], "39 cells are not too many, 52 are"
    small.finish()


def test_the_largest_request_the_cache_can_hold_runs() -> None:
    steps = Steps(100, prefix_cache_cells=100)
    for i in range(3):
        steps.add(str(i), words((i, 60)), max_tokens=40)
    steps.finish()
    assert steps.ended == ["0", "1", "2"]


def test_the_largest_request_runs_whatever_cells_are_retired() -> None:
    """Retired cells count as used, and here they are too few for the flush that spares cached prefixes."""
    steps = Steps(100, ordered=True, prefix_cache_cells=0)
    steps.add("small", words((1, 5)), max_tokens=5)
    steps.finish()
    assert 0 < steps.cache.retired < 25
    steps.add("large", words((2, 60)), max_tokens=40)
    steps.finish()
    assert steps.ended == ["small", "large"]


def test_the_largest_request_runs_whatever_is_cached_and_retired() -> None:
    steps = Steps(100, ordered=True)
    steps.add("small", words((1, 20)), max_tokens=3)
    steps.finish()
    assert steps.kept == [words((1, 20))]
    steps.add("large", words((2, 60)), max_tokens=40)
    steps.finish()
    assert steps.ended == ["small", "large"]


# Rows of a step


def test_prefill_takes_the_rows_that_decoding_leaves_oldest_first() -> None:
    steps = Steps(max_rows=10)
    steps.add("a", words((1, 7)))
    steps.add("b", words((2, 9)))
    steps.add("c", words((3, 2)))
    rows = []
    for _ in range(3):
        plan = steps.step()
        rows.append({span.sequence.request.id: (span.count, span in plan.spans) for span in plan.spans})
    assert rows[0] == {"a": (7, True), "b": (3, True)}
    assert rows[1] == {"a": (1, True), "b": (6, True), "c": (2, True)}
    assert rows[2] == {"a": (1, True), "b": (1, True), "c": (1, True)}


def test_a_long_prompt_does_not_stall_those_that_decode() -> None:
    steps = Steps(max_rows=10, slots=4)
    short = [steps.add(str(i), words((i, 2)), max_tokens=50) for i in range(3)]
    steps.step()
    steps.add("long", words((8, 100)), max_tokens=5)
    for _ in range(14):
        before = [s.length for s in short]
        steps.step()
        assert [s.length - n for s, n in zip(short, before, strict=True)] == [1, 1, 1]
    steps.finish()


def test_only_a_span_that_reaches_the_last_token_is_ready() -> None:
    steps = Steps(max_rows=10)
    sequence = steps.add("a", words((1, 25)))
    for rows, ready in [(10, []), (10, []), (5, ["a"]), (1, ["a"])]:
        assert [span.count for span in steps.step().spans] == [rows]
        assert steps.ready == ready
    assert sequence.length == 27


def test_a_long_prompt_gets_calls_of_its_own() -> None:
    steps = Steps(max_rows=10, chunk_rows=16)
    steps.add("short", words((1, 5)), max_tokens=20)
    steps.step()
    steps.add("long", words((2, 40)), max_tokens=2)
    plans, ready = [], []
    for _ in range(3):
        plans.append(steps.step())
        ready.append(steps.ready)
    assert [plan.chunk and (plan.chunk.sequence.request.id, plan.chunk.count) for plan in plans] == [
        ("long", 16),
        ("long", 16),
        None,  # 8 tokens are left, no more than one chunk: they go with the others
    ]
    rows = [[(span.sequence.request.id, span.count) for span in plan.spans] for plan in plans]
    assert rows == [[("short", 1)], [("short", 1)], [("short", 1), ("long", 8)]]
    assert plans[0].sequences[0].request.id == "long"
    assert ready == [["short"], ["short"], ["short", "long"]]
    steps.finish()


@pytest.mark.parametrize(("length", "chunked"), [(16, False), (17, True)])
def test_a_chunk_never_holds_the_last_token(length: int, chunked: bool) -> None:
    """The last row of a prompt gives logits, and so belongs into the spans."""
    steps = Steps(max_rows=20, chunk_rows=16)
    steps.add("a", words((1, length)))
    assert (steps.step().chunk is not None) is chunked
    steps.finish()


def test_one_chunk_a_step_the_oldest_first() -> None:
    steps = Steps(max_rows=10, chunk_rows=16, sharing=False)
    steps.add("a", words((1, 40)))
    steps.add("b", words((2, 40)))
    chunks = [steps.step().chunk for _ in range(5)]
    assert [chunk and chunk.sequence.request.id for chunk in chunks] == ["a", "a", "b", "b", None]
    steps.finish()


# The prefill context


def rows_of(spans: list[Span]) -> list[tuple[str, int]]:
    return [(span.sequence.request.id, span.count) for span in spans]


def test_prompts_go_through_the_prefill_context_one_after_the_other() -> None:
    steps = Steps(slots=6, max_rows=40, chunk_rows=64, prefill_cells=100, sharing=False)
    for name, length in [("a", 90), ("b", 40), ("c", 32), ("d", 70)]:
        steps.add(name, words((1, length)), max_tokens=9)
    plans = [steps.step() for _ in range(4)]
    assert [rows_of(plan.prefill) for plan in plans] == [
        [("a", 64)],
        [("a", 25), ("b", 39)],  # all but the last token, and no more than one chunk together
        [("d", 64)],
        [("d", 5)],
    ]
    assert [rows_of(plan.spans) for plan in plans] == [
        [("c", 32)],  # too short to be worth a call of its own
        [("c", 1)],
        [("a", 1), ("b", 1), ("c", 1)],
        [("a", 1), ("b", 1), ("c", 1)],
    ]
    steps.finish()


@pytest.mark.parametrize(("length", "where"), [(100, "prefill"), (101, "chunk")])
def test_a_prompt_too_long_for_the_prefill_context(length: int, where: str) -> None:
    steps = Steps(max_rows=40, chunk_rows=64, prefill_cells=100)
    steps.add("a", words((1, length)))
    plan = steps.step()
    assert (len(plan.prefill), plan.chunk is not None) == ((1, False) if where == "prefill" else (0, True))
    steps.finish()


def test_a_shared_prefix_counts_once_its_cells_have_moved() -> None:
    steps = Steps(max_rows=40, chunk_rows=64, prefill_cells=200)
    steps.add("a", words((1, 100), (2, 10)), max_tokens=9)
    b = steps.add("b", words((1, 100), (3, 60)), max_tokens=9)
    steps.step()
    assert steps.running == ["a"], "b waits for the cells that a is computing"
    steps.step()
    assert rows_of(steps.step().prefill) == [("b", 59)]
    assert b.cached == 100
    steps.finish()


def test_a_prompt_that_is_given_up_leaves_the_prefill_context_to_the_next() -> None:
    steps = Steps(max_rows=40, chunk_rows=64, prefill_cells=200, sharing=False)
    a = steps.add("a", words((1, 100)))
    steps.add("b", words((2, 100)))
    steps.step()
    steps.end(a)
    assert rows_of(steps.step().prefill) == [("b", 64)]
    steps.finish()


def test_after_a_failure_a_prompt_is_computed_where_it_is_decoded() -> None:
    steps = Steps(max_rows=40, chunk_rows=64, prefill_cells=200, sharing=False)
    steps.add("a", words((1, 60)))
    assert rows_of(steps.step(fails=True).prefill) == [("a", 59)]
    plan = steps.step()
    assert (plan.prefill, rows_of(plan.spans)) == ([], [("a", 40)])
    steps.finish()


# Sharing


def test_a_request_with_the_prefix_of_one_in_prefill_steps_aside_and_shares() -> None:
    steps = Steps(max_rows=20)
    first = steps.add("first", words((1, 60), (2, 5)), max_tokens=30)
    steps.step()
    second = steps.add("second", words((1, 60), (3, 5)), max_tokens=5)
    other = steps.add("other", words((7, 5)), max_tokens=30)
    steps.step()
    assert steps.running == ["first", "other"], "it lets others by while the cells are computed"
    steps.step()
    assert steps.running == ["first", "other"]
    steps.step()
    assert steps.running == ["first", "other", "second"]
    assert (second.cached, second.shared) == (60, 60)
    assert other.cached == 0
    assert ("share", 0, second.seq_id, 60) in steps.memory.calls
    assert steps.cache.used == first.computed + second.computed - 60 + other.computed
    steps.finish()


def test_many_with_one_prefix_compute_it_once() -> None:
    steps = Steps(slots=8, max_rows=20)
    sequences = [steps.add(str(i), words((1, 40), (i + 2, 3)), max_tokens=4) for i in range(8)]
    steps.finish()
    assert [s.cached for s in sequences] == [0] + [40] * 7
    assert steps.ended == [str(i) for i in range(8)]


def test_the_last_prompt_token_is_never_shared() -> None:
    steps = Steps(max_rows=100)
    steps.add("a", words((1, 40)))
    steps.step()
    same = steps.add("b", words((1, 40)))
    steps.step()
    assert same.cached == 39
    steps.finish()


@pytest.mark.parametrize(("common", "cached"), [(MIN_SHARED - 1, 0), (MIN_SHARED, MIN_SHARED)])
def test_short_prefixes_are_not_worth_it(common: int, cached: int) -> None:
    steps = Steps(max_rows=100)
    steps.add("a", words((1, common), (2, 9)), max_tokens=20)
    steps.step()
    b = steps.add("b", words((1, common), (3, 9)))
    steps.step()
    assert b.cached == cached
    steps.finish()


def test_a_taker_does_not_wait_for_a_few_tokens_more() -> None:
    """It steps aside only when that brings at least as much as a share is worth."""
    steps = Steps(max_rows=40)
    steps.add("a", words((1, 39 + MIN_SHARED)), max_tokens=20)
    steps.step()
    b = steps.add("b", words((1, 39 + MIN_SHARED), (2, 5)))
    steps.step()
    assert b.cached == 40, "15 more tokens would have been there a step later"
    steps.finish()


def test_without_sharing_nothing_is_shared_or_kept() -> None:
    steps = Steps(max_rows=100, sharing=False)
    for i in range(3):
        steps.add(str(i), words((1, 40)))
    steps.finish()
    assert steps.kept == []
    assert steps.cache.used == 0
    assert not any(call[0] == "share" for call in steps.memory.calls)


def test_an_ended_prompt_is_kept_and_shared_later() -> None:
    steps = Steps(max_rows=100)
    steps.add("a", words((1, 40), (2, 3)))
    steps.finish()
    assert steps.kept == [words((1, 40), (2, 3))]
    b = steps.add("b", words((1, 40), (3, 3)))
    steps.finish()
    assert b.cached == 40


def test_a_giver_may_end_before_its_taker() -> None:
    steps = Steps(max_rows=100, prefix_cache_cells=0)
    giver = steps.add("a", words((1, 40)), max_tokens=20)
    steps.step()
    taker = steps.add("b", words((1, 40), (2, 3)), max_tokens=20)
    steps.step()
    steps.end(giver)
    assert steps.cache.used == taker.computed
    steps.finish()
    assert steps.cache.used == 0


def test_while_others_wait_only_the_proven_part_of_a_prompt_is_kept() -> None:
    steps = Steps(max_rows=200, slots=2)
    a = steps.add("a", words((1, 30), (2, 30)), max_tokens=20)
    steps.step()
    b = steps.add("b", words((1, 30), (3, 30)), max_tokens=20)
    steps.step()
    assert (a.shared, b.shared) == (30, 30)
    steps.add("c", words((4, 30)), max_tokens=20)
    steps.end(a)
    assert steps.kept == [words((1, 30))]
    steps.step()
    steps.add("d", words((5, 3)), max_tokens=20)
    c = next(s for s in steps.scheduler.running if s.request.id == "c")
    steps.end(c)
    assert steps.kept == [words((1, 30))], "nobody ever shared with c"
    steps.finish()


def test_kept_prompts_go_when_room_is_needed_but_not_the_source() -> None:
    steps = Steps(150, max_rows=200)
    for word in (1, 2):
        steps.add(str(word), words((word, 40)), max_tokens=2)
        steps.finish()
    assert len(steps.kept) == 2
    taker = steps.add("taker", words((1, 40), (9, 3)), max_tokens=40)
    steps.step()
    assert taker.cached == 40
    assert len(steps.kept) == 2, "40 + 40 kept cells and 43 of its own: there was room"
    steps.end(taker)
    greedy = steps.add("greedy", words((1, 40), (8, 50)), max_tokens=50)
    steps.step()
    assert greedy.cached == 40, "the older prompt was spared, because it is the source"
    assert words((1, 40)) in steps.kept
    assert words((2, 40)) not in steps.kept
    steps.finish()


def test_a_kept_prompt_that_is_used_stays_longer() -> None:
    steps = Steps(max_rows=200, prefix_cache_cells=100)
    for word in (1, 2):
        steps.add(str(word), words((word, 40)), max_tokens=2)
        steps.finish()
    steps.add("taker", words((1, 40), (9, 3)), max_tokens=2)
    steps.step()
    steps.add("third", words((3, 40)), max_tokens=2)
    steps.end(steps.scheduler.running[0])
    steps.finish()
    assert words((2, 40)) not in steps.kept, "the least recently used went"
    assert words((1, 40)) in steps.kept
    assert words((3, 40)) in steps.kept


def test_a_source_that_stands_in_the_way_of_its_taker_does_not_block_it_for_ever() -> None:
    """The source's tail, which the taker cannot use, is in the way of the taker's own cells."""
    steps = Steps(100, max_rows=200)
    steps.add("source", words((1, 20), (2, 60)), max_tokens=2)
    steps.finish()
    taker = steps.add("taker", words((1, 20), (3, 40)), max_tokens=30)
    steps.finish()
    assert steps.ended == ["source", "taker"]
    assert taker.length == 90


def test_ids_of_kept_prompts_are_taken_back_when_they_run_out() -> None:
    steps = Steps(4000, slots=2, max_rows=100, prefix_cache_cells=4000)
    for i in range(12):
        steps.add(str(i), words((i, 20)), max_tokens=2)
        steps.finish()
    assert len(steps.kept) == 6, "as many as there are ids"
    for i in range(2):
        steps.add(f"new {i}", words((i + 50, 20)), max_tokens=2)
    steps.step()
    assert steps.running == ["new 0", "new 1"]
    steps.finish()


# Ends and failures


def test_a_waiting_request_can_be_retired() -> None:
    steps = Steps(slots=1)
    steps.add("a", words((1, 3)))
    waiting = steps.add("b", words((2, 3)))
    steps.add("c", words((3, 3)))
    steps.step()
    steps.end(waiting)
    assert steps.scheduler.waiting == 1
    steps.finish()
    assert steps.ended == ["b", "a", "c"]


def test_a_request_retired_in_prefill_keeps_no_more_than_it_computed() -> None:
    steps = Steps(max_rows=20)
    long = steps.add("a", words((1, 60)))
    steps.step()
    steps.end(long)
    assert steps.kept == [words((1, 20))]


def test_recomputed_requests_run_alone_one_after_the_other() -> None:
    steps = Steps(max_rows=30)
    a = steps.add("a", words((1, 5)), max_tokens=9)
    b = steps.add("b", words((2, 5)), max_tokens=9)
    steps.step()
    steps.step()
    steps.step(fails=True)
    assert (a.computed, b.computed, a.failures, b.failures) == (0, 0, 1, 1)
    assert (a.length, b.length) == (7, 7), "tokens already emitted stand"
    c = steps.add("c", words((3, 5)), max_tokens=9)
    assert [[s.request.id for s in steps.step().sequences] for _ in range(3)] == [
        ["a"],
        ["b"],
        ["a", "b", "c"],
    ]
    assert (a.length, b.length, c.length) == (9, 9, 6)
    steps.finish()


def test_a_recomputed_request_does_not_count_what_it_once_shared() -> None:
    """cached is what was not computed; computed anew without its source, that is nothing."""
    steps = Steps(max_rows=100, prefix_cache_cells=0)
    giver = steps.add("a", words((1, 40)), max_tokens=20)
    steps.step()
    taker = steps.add("b", words((1, 40), (2, 5)), max_tokens=20)
    steps.step()
    assert taker.cached == 40
    steps.end(giver)
    steps.step(fails=True)
    steps.step()
    assert taker.computed == 46
    assert taker.cached == 0
    steps.finish()


def test_recomputing_what_was_shared_does_not_overflow_the_cache() -> None:
    """Two that fit by sharing alone fail together: apart, they need more cells than there are."""
    steps = Steps(100, max_rows=100)
    steps.add("a", words((1, 60)), max_tokens=10)
    steps.step()
    steps.add("b", words((1, 60), (2, 5)), max_tokens=10)
    steps.step()
    assert steps.running == ["a", "b"]
    steps.step(fails=True)
    steps.finish()
    assert sorted(steps.ended) == ["a", "b"]


def test_recomputing_does_not_overflow_an_ordered_cache() -> None:
    """The cells of the failed step stay retired while its requests run again."""
    steps = Steps(100, max_rows=100, ordered=True)
    steps.add("a", words((1, 70)), max_tokens=20)
    steps.step()
    steps.step(fails=True)
    steps.finish()
    assert steps.ended == ["a"]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("chunk_rows", [0, 16])
@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.slow
def test_random_arrivals_and_ends(ordered: bool, chunk_rows: int, failing: bool) -> None:
    """Whatever comes and goes: no overflow, no leak, no standstill, and everything ends."""
    for seed in range(12):
        rng = random.Random(seed)
        capacity = rng.choice([64, 100, 200, 400])
        steps = Steps(
            capacity,
            slots=rng.randint(1, 6),
            max_rows=rng.randint(7, 40),
            chunk_rows=chunk_rows,
            prefill_cells=rng.choice([0, 40, 100]) if chunk_rows else 0,
            busy=rng.choice([None, (1, 60), (3, 150)]),
            sharing=rng.random() < 0.8,
            prefix_cache_cells=rng.choice([0, capacity // 4, capacity]),
            ordered=ordered,
        )
        total = 40
        for i in range(total):
            prompt = words((rng.randint(1, 3), rng.randint(1, 30)), (rng.randint(1, 3), rng.randint(1, 25)))
            room = capacity - len(prompt)
            max_tokens = room if rng.random() < 0.1 else rng.randint(1, min(room, 20))
            steps.add(str(i), prompt, max_tokens, priority=rng.randint(0, 2))
            for _ in range(rng.choice([0, 0, 1, 5])):
                steps.step(fails=failing and rng.random() < 0.1)
                if rng.random() < 0.1:
                    steps.end(rng.choice([*steps.scheduler.sequences()] or [steps.add("x", [1])]))
        steps.finish()
        assert len(set(steps.ended)) == len(steps.ended)
        assert {str(i) for i in range(total)} <= set(steps.ended)
