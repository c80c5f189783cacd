"""Where sequences run and with which rows: layouts, moves between them, calls of a step. No model."""

from __future__ import annotations

import pytest

from engine.base.config import TILE_ROWS
from engine.core.scheduler import FEW_ON_GPU as FEW
from engine.core.scheduler import PASS_ROWS, WORTH_MOVING, Span
from tests.engine.helpers.steps import Steps, words

# Layouts


def decoding(count: int, max_tokens: int = 60, **settings: object) -> Steps:
    """After a step that computed so many short prompts in lanes."""
    steps = Steps(**{"slots": 8, "trees": True, **settings})  # type: ignore[arg-type]
    for i in range(count):
        steps.add(str(i), words((i, 5)), max_tokens)
    steps.step()
    assert steps.layouts == ["lane"] * count
    return steps


def test_few_sequences_go_into_the_shared_cache_once_they_decode() -> None:
    steps = decoding(FEW)
    steps.step()
    assert steps.layouts == ["shared"] * FEW
    steps.finish()


def test_a_prompt_is_computed_in_its_lane_before_it_moves() -> None:
    steps = Steps(chunk_rows=64, trees=True)
    steps.add("a", words((1, 100)), max_tokens=60)
    layouts = []
    for _ in range(3):
        steps.step()
        layouts += steps.layouts
    assert layouts == ["lane", "lane", "shared"]
    steps.finish()


def test_more_than_few_go_back_into_lanes_and_return_when_they_are_few_again() -> None:
    steps = decoding(FEW)
    steps.step()
    late = steps.add("late", words((9, 5)), max_tokens=60)
    steps.step()
    assert steps.layouts == ["lane"] * (FEW + 1)
    steps.step()
    steps.end(late)
    steps.step()
    assert steps.layouts == ["shared"] * FEW
    steps.finish()


def test_what_is_longer_than_a_lane_stays_in_the_shared_cache() -> None:
    steps = Steps(slots=8, lane=50)
    steps.add("long", words((1, 60)), max_tokens=60)
    for i in range(FEW + 1):
        steps.add(str(i), words((i + 2, 5)), max_tokens=40)
    for _ in range(4):
        steps.step()
        assert steps.layouts == ["shared", *["lane"] * (FEW + 1)]
    steps.finish()


@pytest.mark.parametrize(("left", "layout"), [(WORTH_MOVING, "shared"), (WORTH_MOVING - 1, "lane")])
def test_a_sequence_that_ends_soon_does_not_move(left: int, layout: str) -> None:
    steps = decoding(1, max_tokens=1 + left)
    steps.step()
    assert steps.layouts == [layout]
    steps.finish()


@pytest.mark.parametrize("setting", [{"trees": False}, {"movable": False}, {"alone": True}])
def test_without_trees_or_moves_few_sequences_stay_in_lanes(setting: dict[str, bool]) -> None:
    steps = decoding(2, **setting)
    steps.step()
    assert steps.layouts == ["lane", "lane"]
    steps.finish()


def test_few_sequences_stay_in_lanes_while_others_wait() -> None:
    steps = decoding(2, slots=2)
    steps.add("waits", words((9, 5)), max_tokens=60)
    steps.step()
    assert steps.layouts == ["lane", "lane"]
    steps.finish()


def test_the_shared_cache_takes_as_many_as_it_has_room_for() -> None:
    steps = decoding(FEW, capacity=2 * 65 + 64)
    steps.step()
    assert steps.layouts == ["shared"] * 2 + ["lane"] * (FEW - 2)
    steps.step()
    assert steps.layouts == ["shared"] * 2 + ["lane"] * (FEW - 2)
    steps.finish()


def test_a_gap_between_lanes_is_closed_with_the_highest() -> None:
    steps = decoding(5, trees=False)
    first, second, *_ = steps.scheduler.running
    steps.end(first)
    steps.end(second)
    steps.step()
    assert steps.places == {"2": ("lane", 2), "3": ("lane", 1), "4": ("lane", 0)}
    copies = [call for call in steps.streams.calls if call[0] == "copy_stream"]
    assert copies == [("copy_stream", 4, 0), ("copy_stream", 3, 1)]
    steps.finish()


def test_a_new_sequence_fills_a_gap_without_a_copy() -> None:
    steps = decoding(3, trees=False)
    steps.end(steps.scheduler.running[0])
    steps.add("new", words((9, 5)))
    steps.step()
    assert steps.places["new"] == ("lane", 0)
    assert not [call for call in steps.streams.calls if call[0] == "copy_stream"]
    steps.finish()


def test_few_make_room_in_the_shared_cache_for_a_long_one_that_waits() -> None:
    steps = decoding(2, capacity=200, lane=80)
    steps.step()
    assert steps.layouts == ["shared", "shared"]
    steps.add("long", words((9, 90)), max_tokens=60)
    for _ in range(2):
        steps.step()
    assert steps.layouts == ["lane", "lane", "shared"]
    steps.finish()


def test_a_sequence_whose_move_fails_is_computed_again() -> None:
    steps = decoding(1)
    steps.memory.refuses = lambda: True
    (sequence,) = steps.scheduler.running
    length = sequence.length
    plan = steps.step()
    assert [rows_of(spans) for spans in plan.prompts] == [[("0", length - 1)]]
    assert (steps.layouts, sequence.length) == (["shared"], length + 1)
    steps.finish()
    assert steps.ended == ["0"]


# Rows of a step


def rows_of(spans: list[Span]) -> list[tuple[str, int]]:
    return [(span.sequence.request.id, span.count) for span in spans]


def test_a_long_prompt_does_not_stall_those_that_decode() -> None:
    steps = Steps(chunk_rows=10)
    short = [steps.add(str(i), words((i, 2)), max_tokens=50) for i in range(3)]
    steps.step()
    steps.add("long", words((8, 150)), max_tokens=5)
    for _ in range(14):
        before = [s.length for s in short]
        steps.step()
        assert [s.length - n for s, n in zip(short, before, strict=True)] == [1, 1, 1]
    steps.finish()


@pytest.mark.parametrize("lane", [0, 100])
def test_the_last_token_of_a_prompt_is_decoded_with_the_others(lane: int) -> None:
    steps = Steps(lane=lane, chunk_rows=10)
    sequence = steps.add("a", words((1, 25)))
    for before, ready in [(10, []), (10, []), (4, ["a"]), (0, ["a"])]:
        plan = steps.step()
        assert [rows_of(spans) for spans in plan.prompts] == ([[("a", before)]] if before else [])
        assert steps.ready == ready
        assert rows_of(plan.spans) == [(name, 1) for name in ready]
    assert sequence.length == 27
    steps.finish()


def test_a_sequence_in_prefill_fills_its_lane_with_its_next_token() -> None:
    steps = Steps(chunk_rows=10)
    steps.add("long", words((1, 40)), max_tokens=9)
    steps.step()
    steps.add("short", words((2, 1)), max_tokens=9)
    plan = steps.step()
    assert rows_of(plan.spans) == [("long", 1), ("short", 1)]
    assert steps.ready == ["short"]
    assert steps.scheduler.running[0].computed == 10 + 10 + 1
    steps.finish()


@pytest.mark.parametrize(
    ("lane", "alone", "lengths", "calls"),
    [
        (300, False, (40, 40 - PASS_ROWS), [[("0", 39), ("1", 39 - PASS_ROWS)]]),
        (300, False, (39 - PASS_ROWS, 40), [[("0", 38 - PASS_ROWS)], [("1", 39)]]),
        (300, False, (40, 35, 40, 33), [[("0", 39), ("1", 34), ("2", 39)]]),  # the last one in the next step
        (300, False, (40, 34, 34, 20), [[("0", 39), ("1", 33), ("2", 33)], [("3", 19)]]),
        (300, True, (40, 39), [[("0", 39)], [("1", 38)]]),
        (0, False, (40, 39), [[("0", 39)], [("1", 38)]]),
        (300, False, (1 + TILE_ROWS, 40), [[("1", 39)], [("0", TILE_ROWS)]]),
        (300, False, (TILE_ROWS, 60), [[("0", TILE_ROWS - 1), ("1", 59)]]),
        (300, False, (62, 62, 7), [[("0", 61), ("1", 61)], [("2", 6)]]),
        (300, False, (250, 40), [[("0", 128)]]),
        (300, False, (40, 250), [[("0", 39)], [("1", 89)]]),
        (300, False, (100, 60), [[("0", 99)]]),  # 29 rows are left, no tile and not the whole
        (300, False, (100, 30), [[("1", 29)], [("0", 99)]]),
        (300, False, (1, 2), [[("1", 1)]]),
    ],
)
def test_calls_of_prompts(
    lane: int, alone: bool, lengths: tuple[int, ...], calls: list[list[tuple[str, int]]]
) -> None:
    """Short parts in lanes together; whole tiles, and all parts in a shared cache, apart."""
    steps = Steps(lane=lane, alone=alone and bool(lane), chunk_rows=128, sharing=False)
    for i, length in enumerate(lengths):
        steps.add(str(i), words((i, length)), max_tokens=9)
    assert [rows_of(spans) for spans in steps.step().prompts] == calls
    steps.finish()


def test_sequences_of_both_layouts_are_decoded_in_a_call_each() -> None:
    steps = Steps(lane=50)
    for name, length in [("long", 60), ("a", 5), ("b", 5)]:
        steps.add(name, words((len(name), length)), max_tokens=9)
    steps.step()
    plan = steps.step()
    assert [rows_of(spans) for spans in plan.calls] == [[("a", 1), ("b", 1)], [("long", 1)]]
    steps.finish()
