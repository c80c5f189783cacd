"""Times decode calls in the context of an idle engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from engine.core.batch_builder import RowsBuilder
from engine.core.engine import Engine
from engine.core.token_tree import NO_DRAFT
from engine.speculative.latency_model import RowTimer

TIMED_AFTER = 32  # tokens in the context before the timed rows, if they fit


def largest_timed(engine: Engine) -> int:
    """Rows of the largest call that can be timed."""
    return min(engine.max_rows, engine.info.kv_cells - _timed_after(engine))


def _timed_after(engine: Engine) -> int:
    return min(TIMED_AFTER, engine.max_rows, engine.info.kv_cells // 2)


@contextmanager
def row_timer(engine: Engine) -> Iterator[RowTimer]:
    """A timer of calls after a short prompt. The engine must stay idle meanwhile."""
    assert engine.idle, "the timed rows need free cells"
    context, seq_id, length = engine.context, engine.leaf_ids[0], 0

    def extend(count: int) -> float:
        nonlocal length
        rows = RowsBuilder()
        for position in range(length, length + count):
            rows.add(seq_id, [0], position, NO_DRAFT)
        began = time.perf_counter()
        context.decode(rows.build())
        length += count
        return time.perf_counter() - began

    def decode(count: int) -> float:
        nonlocal length
        seconds = extend(count)
        length -= count
        context.truncate(seq_id, length)
        return seconds

    try:
        extend(_timed_after(engine))
        yield RowTimer(
            decode, extend, capacity=max(0, engine.info.context_length - length - largest_timed(engine))
        )
    finally:
        context.truncate(seq_id, 0)
