"""How many lines a window has: a second of work, small at both ends of a batch."""

from __future__ import annotations

import pytest

from tasks.batches.window_sizes import MOST_BYTES, MOST_LINES, Crew, first_window, next_size
from tasks.records.packed_line import Line, head
from tasks.store.workers import WorkerInfo


def worker(slots: int = 16, per_s: float = 0.0) -> WorkerInfo:
    metrics = {"lines_per_s": per_s} if per_s else {}
    return WorkerInfo("w", "m", 512, slots, pid=1, host="h", started_at=0.0, metrics=metrics)


@pytest.mark.parametrize(
    ("per_s", "window"), [(0, 16), (3.5, 16), (200, 200), (250.9, 250), (10_000, MOST_LINES)]
)
def test_a_window_is_about_a_second_of_work(per_s: float, window: int) -> None:
    crew = Crew.of([worker(per_s=per_s), worker(slots=4)])
    assert crew == Crew(workers=2, slots=20, most_slots=16, window=window)
    assert next_size(crew, MOST_LINES, 1, None) == window


def test_what_the_leader_has_counted_makes_windows_larger_before_a_worker_has_told_of_it() -> None:
    workers = [worker(), worker(per_s=20)]
    assert [Crew.of(workers, per_s).window for per_s in (30, 100, 10_000)] == [20, 50, MOST_LINES]
    assert Crew.of([], 100).window == 0


def test_the_first_windows_and_the_last_are_small() -> None:
    crew = Crew.of([worker(per_s=100)])
    sizes = [0]
    while sizes[-1] < 100:
        sizes.append(next_size(crew, sizes[-1], 1, None))
    assert sizes == [0, 1, 16, 32, 64, 100]
    left, sizes = 300, []
    while left:
        sizes.append(next_size(crew, 100, 1, left))
        left -= sizes[-1]
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1]) == (100, 1)


def test_owners_that_wait_make_windows_smaller_but_not_without_end() -> None:
    crew = Crew.of([worker(per_s=100)])
    assert [next_size(crew, 100, owners, None) for owners in (1, 2, 4, 50)] == [100, 50, 25, 25]


def packed(groups: str, model: str = "m", text: str = "") -> list[bytes]:
    request = f'{{"prompt":"{text}"}}'
    return [Line(n, f"id-{n}", model, request, 1).packed(ord(group)) for n, group in enumerate(groups, 1)]


@pytest.mark.parametrize(
    ("groups", "most", "lines"),
    [("abcdef", 4, 4), ("aaabbb", 4, 3), ("aaaaaa", 4, 4), ("abbbbb", 4, 4), ("aabbbb", 9, 6), ("a", 1, 1)],
)
def test_lines_with_one_beginning_stay_together(groups: str, most: int, lines: int) -> None:
    chunk = packed(groups)
    assert first_window(chunk, [head(line) for line in chunk], most).lines == chunk[:lines]


def test_a_window_is_of_one_model_and_not_too_large() -> None:
    chunk = packed("abc", "m") + packed("d", "n")
    assert len(first_window(chunk, [head(line) for line in chunk], 9).lines) == 3
    large = packed("abc", text="x" * (MOST_BYTES // 2))
    assert len(first_window(large, [head(line) for line in large], 9).lines) == 1
