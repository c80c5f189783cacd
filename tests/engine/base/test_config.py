"""Settings of the engine: bad ones are refused by name, and rows a call follow from the good ones."""

from __future__ import annotations

import pytest

from engine import EngineConfig
from engine.base.config import (
    CPU_LANE_ROWS,
    CPU_PREFILL_CHUNK,
    GPU_PREFILL_CHUNK,
    TILE_ROWS,
    RowLimits,
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weights", "q8_0"),
        ("slots", 0),
        ("slots", 65),
        ("kv_cells", 63),
        ("batch_window_ms", -1),
        ("batch_window_ms", 1001),
        ("batch_window_ms", float("nan")),
        ("prefill_chunk", -1),
        ("prefix_cache_bytes", -1),
        ("kv_type", "q8_0"),
        ("threads", -1),
    ],
)
def test_a_bad_value_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field} must"):
        EngineConfig(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weights", "as_shipped"),
        ("weights", "bf16"),
        ("slots", 1),
        ("slots", 64),
        ("kv_cells", 64),
        ("batch_window_ms", 0),
        ("batch_window_ms", 1000),
        ("prefill_chunk", 0),
        ("prefix_cache_bytes", 0),
        ("kv_type", "f32"),
        ("threads", 0),
    ],
)
def test_values_at_the_bounds_are_taken(field: str, value: object) -> None:
    assert getattr(EngineConfig(**{field: value}), field) == value  # type: ignore[arg-type]


def test_what_batch_invariance_cannot_have() -> None:
    EngineConfig(slots=62, batch_invariant=True)
    with pytest.raises(ValueError, match=r"^slots must be below 63 with batch_invariant"):
        EngineConfig(slots=63, batch_invariant=True)
    with pytest.raises(ValueError, match=r"^kv_type must be f16"):
        EngineConfig(kv_type="f32", batch_invariant=True)


@pytest.mark.parametrize("slots", [1, 16, 62, 64])
@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("prefill_chunk", [0, 1, 64, 200, 1024])
def test_every_slot_has_a_row_and_prompts_have_some(
    slots: int, on_gpu: bool, batch_invariant: bool, prefill_chunk: int
) -> None:
    slots = min(slots, 62) if batch_invariant else slots
    config = EngineConfig(slots=slots, batch_invariant=batch_invariant, prefill_chunk=prefill_chunk)
    limits = config.row_limits(on_gpu)
    assert limits.lanes >= limits.shared > slots
    assert limits.prompts > 0
    if batch_invariant:
        assert max(limits.lanes, limits.prompts) < TILE_ROWS, "tiled kernels sum in another order"
    elif not on_gpu:
        assert limits.prompts < TILE_ROWS or limits.prompts % TILE_ROWS == 0, "whole tiles"


def test_rows_on_a_cpu() -> None:
    shared = TILE_ROWS - 1
    assert EngineConfig().row_limits(False) == RowLimits(shared, CPU_LANE_ROWS, CPU_PREFILL_CHUNK)
    assert EngineConfig(slots=64).row_limits(False) == RowLimits(65, CPU_LANE_ROWS, CPU_PREFILL_CHUNK)
    assert EngineConfig(prefill_chunk=200).row_limits(False).prompts == 3 * TILE_ROWS
    assert EngineConfig(prefill_chunk=TILE_ROWS - 1).row_limits(False).prompts == TILE_ROWS - 1
    assert EngineConfig(batch_invariant=True).row_limits(False) == RowLimits(shared, shared, shared)
    assert EngineConfig(batch_invariant=True, prefill_chunk=5).row_limits(False).prompts == 5


def test_rows_on_a_gpu() -> None:
    many = 8 + GPU_PREFILL_CHUNK
    assert EngineConfig(slots=8).row_limits(True) == RowLimits(many, many, GPU_PREFILL_CHUNK)
    assert EngineConfig(slots=8, prefill_chunk=100).row_limits(True) == RowLimits(108, 108, 100)
    assert EngineConfig(slots=8, batch_invariant=True).row_limits(True).lanes == TILE_ROWS - 1
