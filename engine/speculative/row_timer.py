"""Times the decode calls of a model in a small context of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from engine.base.config import EngineConfig
from engine.core.rows_builder import RowsBuilder
from engine.core.token_tree import EMPTY_DRAFT
from engine.host.idle_time import Piece
from engine.llama.context import Context
from engine.llama.model import Model, on_gpu
from engine.speculative.latency_model import ATTENTION_CELLS, RowTimer

MOST_TIMED = 96  # rows
TIMED_AFTER = 32  # tokens in the context before the timed rows, if they fit


def largest_timed(config: EngineConfig) -> int:
    """Rows of the largest call that can be timed."""
    return min(_max_rows(config), config.kv_cells - _timed_after(config))


def _timed_after(config: EngineConfig) -> int:
    return min(TIMED_AFTER, _max_rows(config), config.kv_cells // 2)


def _max_rows(config: EngineConfig) -> int:
    """Each row has an output, which takes memory; T of more rows is extrapolated."""
    return min(MOST_TIMED, config.row_limits(on_gpu(config.gpu_layers)).lanes)


@contextmanager
def row_timer(model: Model, config: EngineConfig, piece: Piece = nullcontext) -> Iterator[RowTimer]:
    """A timer of calls after a short prompt. piece: entered around each call. Raises ModelLoadError."""
    before, largest, length = _timed_after(config), largest_timed(config), 0
    capacity = min(config.kv_cells, model.trained_context) - before - largest
    capacity = max(0, min(ATTENTION_CELLS, capacity))
    with piece():
        context = Context(
            model,
            cells=before + capacity + largest,
            seq_ids=1,
            max_rows=max(before, largest),
            threads=config.threads,
            kv_type=config.kv_type,
            companion_row=config.batch_invariant and model.companion_row,
        )

    def extend(count: int) -> float:
        nonlocal length
        rows = RowsBuilder()
        for position in range(length, length + count):
            rows.add(0, [0], position, EMPTY_DRAFT)
        built = rows.build()
        with piece():
            began = time.perf_counter()
            context.decode(built)
            took = time.perf_counter() - began
        length += count
        return took

    def decode(count: int) -> float:
        nonlocal length
        seconds = extend(count)
        length -= count
        context.truncate(0, length)
        return seconds

    try:
        extend(before)
        yield RowTimer(decode, extend, capacity)
    finally:
        context.close()
