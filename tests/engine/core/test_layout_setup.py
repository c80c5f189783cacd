"""Which layouts an engine gets: how long lanes are, when there are none, and whether cells can move."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine import EngineConfig
from engine.base.errors import ModelLoadError
from engine.core import layout_setup
from engine.core.engine import Engine
from engine.core.layout_setup import (
    LEAF_IDS,
    MEMORY_SHARE,
    Layouts,
    lane_cells,
    make_layouts,
    memory_for_lanes,
)
from engine.core.layouts import LANE_SLACK
from engine.host.system_memory import Memory
from engine.llama.context import CELL_PADDING, Context
from engine.llama.devices import Device
from engine.llama.model import Model, Shape
from engine.llama.saved_cells import SavedCells
from tests.engine.helpers.drive import alone, completions, fresh, prompts, request, run, same
from tests.engine.helpers.tiny import CONTEXT, HEADS, KV_HEADS, LAYERS, WIDTH

PLENTY = 1 << 40  # bytes
SHAPE = Shape(
    "llama",
    width=64,
    vocab_size=1000,
    trained_context=100_000,
    cell_bytes=1000,
    state_bytes=0,
    layers=2,
    heads=4,
    feed_forward=128,
    parameters=1,
    weight_bytes=2,
)
CELL_BYTES = LAYERS * KV_HEADS * (WIDTH // HEADS) * 2 * 2  # of the tiny model: keys and values in f16


def card(size: int) -> Device:
    return Device("Vulkan0", "a card", integrated=False, free=size, total=size)


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plenty, whatever this machine has."""
    monkeypatch.setattr(layout_setup, "look_at_memory", lambda: Memory(PLENTY, PLENTY))
    monkeypatch.setattr(layout_setup, "free_device_memory", lambda: PLENTY)
    monkeypatch.setattr(layout_setup, "devices", lambda: [card(PLENTY)])
    monkeypatch.setattr(layout_setup, "idle_backends", list)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# How long a lane is


def config(**settings: object) -> EngineConfig:
    return EngineConfig(**{"slots": 4, "kv_cells": 2048, **settings})  # type: ignore[arg-type]


def test_with_one_slot_there_are_no_lanes() -> None:
    assert lane_cells(config(slots=1), SHAPE, PLENTY) == 0
    assert lane_cells(config(slots=2), SHAPE, PLENTY) > 0


@pytest.mark.parametrize(
    ("settings", "trained", "tokens"),
    [
        ({"slots": 16, "kv_cells": 8192}, 100_000, 1280),  # 5/32 of kv_cells
        ({"slots": 4, "kv_cells": 2048}, 100_000, 512),  # kv_cells / slots
        ({"slots": 2, "kv_cells": 64}, 100_000, 32),
        ({"slots": 16, "kv_cells": 131_072}, 2048, 2048 + LANE_SLACK),  # no request is longer
        ({"slots": 64, "kv_cells": 1_000_000}, 1_000_000, 156_250),
    ],
)
def test_a_lane_has_its_part_of_the_cells_and_no_more_than_a_request_needs(
    settings: dict[str, object], trained: int, tokens: int
) -> None:
    cells = lane_cells(config(**settings), replace(SHAPE, trained_context=trained), PLENTY)
    assert cells % CELL_PADDING == 0
    assert 0 <= cells - tokens < CELL_PADDING


@pytest.mark.parametrize("most", [0, 1, 255, 256, 700, 1024, 5000])
def test_lanes_take_no_more_than_their_share_of_the_memory(most: int) -> None:
    """most: cells of each of the four lanes for which there would be memory."""
    memory = int(most * 4 * SHAPE.cell_bytes / MEMORY_SHARE) + 1
    cells = lane_cells(config(kv_cells=4096), SHAPE, memory)
    assert cells == min(most // CELL_PADDING * CELL_PADDING, 1024)


def test_unknown_memory_does_not_shorten_lanes() -> None:
    assert lane_cells(config(), replace(SHAPE, cell_bytes=10**9), None) == lane_cells(config(), SHAPE, PLENTY)


def test_a_gpu_has_weights_and_shared_cache_once_they_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, settings = replace(SHAPE, weight_bytes=300, cell_bytes=1), config(kv_cells=64, kv_type="f16")
    monkeypatch.setattr(layout_setup, "on_gpu", lambda _layers: False)
    assert memory_for_lanes(settings, shape, 1000, loaded=True) == 700
    assert memory_for_lanes(settings, shape, 200, loaded=False) == 0
    assert memory_for_lanes(settings, shape, None, loaded=False) is None
    monkeypatch.setattr(layout_setup, "on_gpu", lambda _layers: True)
    monkeypatch.setattr(layout_setup, "free_device_memory", lambda: 500)
    assert memory_for_lanes(settings, shape, 1000, loaded=True) == 500
    assert memory_for_lanes(settings, shape, 1000, loaded=False) == 136


# What is made


def layouts(tiny_gguf: str, **settings: object) -> Layouts:
    made = config(**settings)
    return make_layouts(made, Model(tiny_gguf), made.row_limits(on_gpu=False))


@pytest.mark.parametrize("kv_type", ["f16", "f32"])
def test_lanes_and_a_shared_cache_with_trees(
    tiny_gguf: str, caplog: pytest.LogCaptureFixture, kv_type: str
) -> None:
    made = layouts(tiny_gguf, kv_type=kv_type)
    assert made.lanes is not None
    assert made.movable
    assert made.shared.trees
    assert made.shared.leaf_ids == range(4, 4 + LEAF_IDS)
    assert (made.shared.largest, made.lanes.largest) == (2048, 512 - LANE_SLACK)
    assert made.lanes.context.cells == 512
    assert made.capacity == 2048 + 4 * (512 - LANE_SLACK)
    assert made.cell_bytes == CELL_BYTES * (2 if kv_type == "f32" else 1)
    assert made.used == 0
    for context in (made.shared.context, made.lanes.context):
        assert [context.positions(i) for i in range(4)] == [(-1, -1)] * 4, "nothing of the trial is left"
    assert warnings(caplog) == []


def test_with_one_slot_all_is_in_the_shared_cache(tiny_gguf: str, caplog: pytest.LogCaptureFixture) -> None:
    made = layouts(tiny_gguf, slots=1)
    assert (made.lanes, made.movable, made.capacity) == (None, False, 2048)
    assert made.shared.trees
    assert warnings(caplog) == []


def test_batch_invariant_the_shared_cache_has_one_sequence_and_no_trees(tiny_gguf: str) -> None:
    made = layouts(tiny_gguf, batch_invariant=True)
    assert made.lanes is not None
    assert made.lanes.has_room(400)
    assert not made.shared.trees
    assert not made.shared.leaf_ids
    made.shared.take(10)
    assert not made.shared.has_room(10)


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_promise_that_a_gpu_does_not_keep_is_warned_of(
    tiny_gguf: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    batch_invariant: bool,
    on_gpu: bool,
) -> None:
    monkeypatch.setattr(layout_setup, "on_gpu", lambda _layers: on_gpu)
    layouts(tiny_gguf, batch_invariant=batch_invariant)
    assert any("not equal to the bit" in line for line in warnings(caplog)) is (batch_invariant and on_gpu)


@pytest.mark.parametrize("gpu_layers", [-1, 0])
def test_a_build_whose_gpu_is_not_found_is_warned_of(
    tiny_gguf: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, gpu_layers: int
) -> None:
    monkeypatch.setattr(layout_setup, "idle_backends", lambda: ["CUDA"])
    layouts(tiny_gguf, gpu_layers=gpu_layers)
    assert any("finds no GPU" in line for line in warnings(caplog)) is (gpu_layers != 0)


def test_no_lane_is_longer_than_the_model_was_trained_for(tiny_gguf: str) -> None:
    made = layouts(tiny_gguf, kv_cells=65_536)
    assert made.lanes is not None
    assert CONTEXT <= made.lanes.largest < CONTEXT + CELL_PADDING


@pytest.mark.parametrize("on_gpu", [False, True])
def test_with_too_little_memory_there_are_no_lanes(
    tiny_gguf: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, on_gpu: bool
) -> None:
    """That of the device which holds the cells counts, and not the other one's."""
    monkeypatch.setattr(layout_setup, "on_gpu", lambda _layers: on_gpu)
    if on_gpu:
        monkeypatch.setattr(layout_setup, "free_device_memory", lambda: 10_000)
    else:
        monkeypatch.setattr(layout_setup, "look_at_memory", lambda: Memory(10_000, 10_000))
    made = layouts(tiny_gguf)
    assert (made.lanes, made.movable) == (None, False)
    assert warnings(caplog) == ["too little memory for lanes: requests share one cache, and slow each other"]


# What cannot be had


def answers_as_before(tiny_gguf: str) -> Engine:
    """One of the requests is longer than a lane."""
    requests = [request(f"r{i}", p, max_tokens=40) for i, p in enumerate([*prompts(8), "cabbage jade " * 60])]
    reference = alone(tiny_gguf, requests)
    engine = fresh(tiny_gguf)
    assert len(engine.encode(requests[-1])) > 512
    for name, result in completions(run(engine, requests)).items():
        same(result, reference[name])
    return engine


def refuse_lanes(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Of more than so many."""

    def make(*args: object, **settings: Any) -> Context:
        if settings.get("streams") and settings["seq_ids"] > most:
            raise ModelLoadError("no memory")
        return Context(*args, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(layout_setup, "Context", make)


def test_lanes_that_cannot_be_had_are_done_without(
    tiny_gguf: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse_lanes(monkeypatch, 1)
    made = layouts(tiny_gguf)
    assert (made.lanes, made.movable, made.slots) == (None, False, 4)
    assert warnings(caplog) == ["no lanes, so requests share one cache and slow each other: no memory"]
    answers_as_before(tiny_gguf)


def test_fewer_lanes_are_for_fewer_requests_at_once(
    tiny_gguf: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse_lanes(monkeypatch, 3)
    made = layouts(tiny_gguf, slots=8)
    assert made.lanes is not None
    assert (made.lanes.lanes, made.slots, made.movable) == (2, 2, True)
    assert warnings(caplog) == ["2 requests at once instead of 8, for want of memory: no memory"]
    assert answers_as_before(tiny_gguf).info.slots == 2


def test_without_memory_for_the_shared_cache_no_engine_starts(
    tiny_gguf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object, **__: object) -> Context:
        raise ModelLoadError("no memory")

    monkeypatch.setattr(layout_setup, "Context", none)
    with pytest.raises(ModelLoadError, match="no memory"):
        layouts(tiny_gguf)


def test_a_cache_that_no_device_holds_is_refused_before_llama_cpp_is_asked(
    tiny_gguf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which would end the process."""
    monkeypatch.setattr(layout_setup, "on_gpu", lambda _layers: True)
    monkeypatch.setattr(layout_setup, "devices", lambda: [card(2048 * CELL_BYTES)])
    assert layouts(tiny_gguf).capacity
    with pytest.raises(ModelLoadError, match=r"0\.0 GB, and Vulkan0: a card has 0\.0: lower kv_cells"):
        layouts(tiny_gguf, kv_cells=2049)


def changed(state: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A bit of the last value."""
    state = state.copy()
    state[-20] ^= 1
    return state


@pytest.mark.parametrize("conversion", [changed, lambda state: state[:-8]], ids=["wrong", "refused"])
def test_where_cells_do_not_come_back_unchanged_nothing_moves(
    tiny_gguf: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, conversion: object
) -> None:
    convert = SavedCells.for_streams

    def other_format(self: SavedCells, streams: int) -> NDArray[np.uint8]:
        data = convert(self, streams)
        return data if streams == self.streams else conversion(data)  # type: ignore[operator, no-any-return]

    monkeypatch.setattr(SavedCells, "for_streams", other_format)
    made = layouts(tiny_gguf)
    assert made.lanes is not None
    assert not made.movable
    assert warnings(caplog) == [
        "cells of this model cannot be moved: requests stay in lanes, and longer ones apart"
    ]
    for context in (made.shared.context, made.lanes.context):
        assert [context.positions(i) for i in range(4)] == [(-1, -1)] * 4
    answers_as_before(tiny_gguf)
