"""How many lines of a batch the next windows have: pure functions.

A window keeps a worker busy for about WINDOW_S. The first of a batch has one line, so that its result comes
at once, and each at most twice as many as the one before: lines slower than those of the batch before show
before a large window is out. The last ones are small, so that no worker runs alone for long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.records.packed_line import Head
from tasks.records.window import NewWindow
from tasks.store.workers import WorkerInfo

WINDOW_S = 1.0
MOST_LINES = 256
MOST_BYTES = 256 * 1024  # of a window with several lines: Redis keeps it, and sends it whole
MOST_OWNERS = 4  # among which a window's time is divided, so that a newcomer waits for less


@dataclass(frozen=True, slots=True)
class Crew:
    """The workers of a queue. slots: of all of them; most_slots, window: of one, the largest."""

    workers: int
    slots: int
    most_slots: int
    window: int

    @classmethod
    def of(cls, workers: Sequence[WorkerInfo], per_s: float = 0.0) -> Crew:
        """per_s: lines that they end, as the leader counts them, which knows it sooner."""
        counted = int(per_s * WINDOW_S / len(workers)) if workers else 0
        return cls(
            len(workers),
            sum(worker.slots for worker in workers),
            max((worker.slots for worker in workers), default=0),
            max(min(MOST_LINES, counted), *map(window_lines, workers), 0),
        )


def window_lines(worker: WorkerInfo) -> int:
    """Lines that it ends in WINDOW_S, or as many as its slots while that is not known."""
    per_s = float(worker.metrics.get("lines_per_s", 0.0))
    return max(worker.slots, min(MOST_LINES, int(per_s * WINDOW_S)))


def next_size(crew: Crew, last: int, owners: int, unsent: int | None) -> int:
    """Lines of a batch's next window.

    last: of its last one, 0 for none; owners: whose lines wait in the queue; unsent: lines of the batch that
    are left, None for many.
    """
    grown = max(crew.most_slots, 2 * last) if last else 1
    tail = MOST_LINES if unsent is None else -(-unsent // (2 * max(1, crew.workers)))
    return max(1, min(crew.window // min(max(1, owners), MOST_OWNERS), grown, tail, MOST_LINES))


def first_window(lines: Sequence[bytes], heads: Sequence[Head], most: int) -> NewWindow:
    """Of these lines, at most so many of one model. Those with one beginning stay together where they can."""
    end, size = 1, len(lines[0])
    while end < min(most, len(lines)):
        size += len(lines[end])
        if size > MOST_BYTES or heads[end].model != heads[0].model:
            break
        end += 1
    return NewWindow(heads[0].model, lines[: _at_border(heads, end)])


def _at_border(heads: Sequence[Head], end: int) -> int:
    """The last place up to `end` at which no group is parted, or `end` where that is in the first half."""
    for place in range(end, end // 2, -1):
        if place == len(heads) or heads[place].group != heads[place - 1].group:
            return place
    return end
