"""Heads by ONNX Runtime: every layout against full precision."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.medusa.calibration import Calibration
from engine.medusa.layouts import HeadsLoadError
from engine.medusa.loader import load_heads
from engine.medusa.medusa_source import HeadSource
from engine.medusa.model_rows import FINGERPRINT, fingerprint
from engine.medusa.onnx.export import export
from engine.medusa.onnx.graph import BLOCK, quantised
from engine.medusa.onnx.heads import OnnxHeads
from tests.benchmarks.drafting.guesses import Nearness, read
from tests.engine.helpers.float_heads import FloatHeads
from tests.engine.helpers.torch_heads import (
    HEADS,
    HIDDEN,
    MODEL_ROWS,
    PATH,
    TOKEN_MAP,
    TOP,
    VOCAB,
    WIDTH,
    State,
    Vllm,
    hydra,
    load,
    mapped,
    medusa,
    onnx_heads,
    write,
    written,
)

pytestmark = pytest.mark.slow

TOLERANCE = {8: 0.03, 4: 0.15}  # of the logits' length, on random weights

Floats = NDArray[np.float32]


def logits(heads: FloatHeads | OnnxHeads, rows: int) -> Floats:
    """Of every token, less their mean [states, heads, vocabulary]."""
    tokens, probabilities = heads.propose(HIDDEN, HEADS, rows, path=PATH)
    logs = np.log(probabilities)
    whole = np.zeros((len(HIDDEN), HEADS, VOCAB), dtype=np.float32)
    np.put_along_axis(whole, tokens.astype(np.int64), logs - logs.mean(axis=-1, keepdims=True), axis=2)
    return whole


def distance(exact: Floats, near: Floats) -> float:
    """The largest over states and heads, in lengths of the exact one."""
    lengths = np.linalg.norm(exact, axis=-1)
    return float((np.linalg.norm(exact - near, axis=-1) / lengths).max())


def prefixed(state: State) -> State:
    return {"model.norm.weight": torch.ones(3), **{f"medusa_head.{key}": t for key, t in state.items()}}


LAYOUTS: dict[str, Callable[[], tuple[State, dict[str, object]]]] = {
    "v1": lambda: (medusa(1, True).state_dict(), {}),
    "v1, two layers": lambda: (medusa(2, True).state_dict(), {}),
    "v1 in BF16": lambda: (medusa(1, True).bfloat16().state_dict(), {}),
    "v2": lambda: (medusa(2, False).state_dict(), {}),
    "ours": lambda: (mapped(medusa(1, False).state_dict()), {}),
    "ours, seeing the path": lambda: (mapped(hydra(1).state_dict()), {}),
    "the same, two layers": lambda: (hydra(2).state_dict(), {}),
    "full model": lambda: (prefixed(medusa(1, True).state_dict()), {}),
    "vLLM": lambda: (Vllm(1, VOCAB, bias=True).state_dict(), {"vocab_size": VOCAB, "logit_scale": 0.25}),
    "vLLM, its map's rows": lambda: (mapped(Vllm(1, len(TOKEN_MAP)).state_dict()), {}),
    "vLLM, all rows and a map": lambda: (mapped(Vllm(1, VOCAB).state_dict()), {}),
    "vLLM, one lm_head": lambda: (Vllm(1, VOCAB, lm_heads=1).state_dict(), {}),
}


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", ["medusa_lm_head.safetensors", "medusa_lm_head.pt"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_as_in_full_precision(tmp_path: Path, layout: str, name: str, bits: int) -> None:
    state, config = LAYOUTS[layout]()
    folder = tmp_path / "heads"
    folder.mkdir()
    write(folder / name, state)
    (folder / "config.json").write_text(json.dumps(config))
    full = load(folder)
    ours = onnx_heads(written(folder, tmp_path / "heads.onnx", bits))
    assert (ours.heads, ours.layers, ours.width, ours.bits) == (HEADS, full.layers, WIDTH, bits)
    rows = VOCAB if full.draft_vocabulary is None else len(full.draft_vocabulary)
    assert ours.rows == rows
    exact, near = logits(full, rows), logits(ours, rows)
    assert distance(exact, near) < TOLERANCE[bits]
    assert distance(exact, near[::-1]) > 0.5, "it tells states apart"
    assert distance(exact, near[:, ::-1]) > 0.5, "and heads"
    np.testing.assert_allclose(ours.propose(HIDDEN, HEADS, rows, path=PATH)[1].sum(axis=-1), 1, rtol=1e-4)
    assert np.array_equal(near, logits(onnx_heads(folder, bits), rows)), "as when built in memory"


def test_a_guess_depends_on_the_path_as_far_as_the_head_sees_it(tmp_path: Path) -> None:
    heads = onnx_heads(write(tmp_path / "heads.pt", hydra(1).state_dict()))
    assert heads.sees_path
    for changed in range(HEADS):
        path = PATH.copy()
        path[:, changed] = (path[:, changed] + 1) % VOCAB
        for head in range(HEADS):
            before = heads.propose(HIDDEN, head + 1, TOP, first=head, path=PATH)
            after = heads.propose(HIDDEN, head + 1, TOP, first=head, path=path)
            assert np.array_equal(before[1], after[1]) is (changed > head)


def test_candidates_come_best_first(tmp_path: Path) -> None:
    heads = onnx_heads(write(tmp_path / "heads.pt", medusa(1, False).state_dict()))
    tokens, probabilities = heads.propose(HIDDEN, HEADS, TOP)
    assert tokens.shape == probabilities.shape == (len(HIDDEN), HEADS, TOP)
    assert (tokens.dtype, probabilities.dtype) == (np.int32, np.float32)
    assert (np.diff(probabilities, axis=-1) <= 0).all()
    many, _ = heads.propose(HIDDEN, HEADS, VOCAB)
    assert np.array_equal(many[..., :TOP], tokens)


@pytest.mark.parametrize("own_lm_head", [True, False])
def test_any_run_of_heads_is_that_part_of_all(tmp_path: Path, own_lm_head: bool) -> None:
    heads = onnx_heads(write(tmp_path / "heads.pt", medusa(2, own_lm_head).state_dict()))
    tokens, probabilities = heads.propose(HIDDEN, HEADS, TOP)
    for first in range(HEADS):
        for stop in range(first + 1, HEADS + 1):
            some, chances = heads.propose(HIDDEN[2:4], stop, TOP, first=first)
            assert np.array_equal(some, tokens[2:4, first:stop])
            np.testing.assert_allclose(chances, probabilities[2:4, first:stop], rtol=1e-5)


def test_more_threads_change_no_guess(tmp_path: Path) -> None:
    path = write(tmp_path / "heads.pt", medusa(1, True).state_dict())
    one, two = (onnx_heads(path, threads=threads).propose(HIDDEN, HEADS, TOP) for threads in (1, 2))
    assert np.array_equal(one[0], two[0])


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("width", [24, 32, 65])
def test_blocks_are_the_weights_but_for_rounding(width: int, bits: int) -> None:
    weight = np.random.default_rng(1).standard_normal((3, width)).astype(np.float32)
    weight[1] = 0
    integers, scales = quantised(weight, bits)
    if bits == 4:
        integers = np.stack([integers & 15, integers >> 4], axis=-1).reshape(*scales.shape, BLOCK)
    back = (integers.astype(np.float32) - 2 ** (bits - 1)) * scales[..., None]
    error = np.abs(back.reshape(3, -1)[:, :width] - weight)
    assert (error <= scales.repeat(BLOCK, axis=1)[:, :width] * 0.501).all()


def test_what_was_said_of_heads_goes_along(tmp_path: Path) -> None:
    said = {"calibration": Calibration(HEADS).to_json(), FINGERPRINT: "00ff"}
    path = write(tmp_path / "heads.safetensors", mapped(medusa(1, False).state_dict()), said)
    heads = onnx_heads(written(path, tmp_path / "heads.onnx"))
    assert {key: heads.metadata[key] for key in said} == said
    HeadSource(heads)


@pytest.mark.parametrize("lm_heads", [1, 2])
@pytest.mark.parametrize("vocabulary", [90, 91, 6143])
@pytest.mark.parametrize("width", [24, 32, 48, 576])
def test_heads_of_any_shape_guess_like_those_in_full(
    tmp_path: Path, vocabulary: int, width: int, lm_heads: int
) -> None:
    """A kernel that reads past a row would give nonsense, or crash."""
    generator = torch.Generator().manual_seed(5)

    def some(*shape: int, scale: float) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * scale

    state = {}
    for head in range(lm_heads):
        state[f"lm_heads.{head}.weight"] = some(vocabulary, width, scale=4 / width**0.5)
    for head, layer in np.ndindex(2, 2):
        state[f"blocks.{head}.layers.{layer}.weight"] = some(width, width, scale=0.05)
        state[f"blocks.{head}.layers.{layer}.bias"] = some(width, scale=1.0)
    path = write(tmp_path / "heads.safetensors", state)
    hidden = some(3, width, scale=1.0).numpy()
    full = FloatHeads.load(str(path), width=width, vocab_size=vocabulary, model_rows=MODEL_ROWS)
    small = onnx_heads(path, width=width, vocab_size=vocabulary)
    (tokens, chances), (ours, own) = full.propose(hidden, 2, 3), small.propose(hidden, 2, 3)
    assert np.abs(chances - own).max() < 0.08
    sure = chances[:, :, 0] - chances[:, :, 1] > 0.17
    assert sure.any()
    assert np.array_equal(tokens[sure][:, 0], ours[sure][:, 0])


# The default model


def test_real_states_get_the_drafts_of_full_precision() -> None:
    """So that the calibration, counted on the same weights, fits."""
    near = Nearness(*read(400))
    same, difference = near.of(load_heads)
    assert same > 0.9
    assert difference < 0.03
    four, _ = near.of(load_heads, bits=4)
    assert 0.6 < four < same


# Export


def test_an_exported_file_names_its_model_and_is_whole(tiny_gguf: str, tmp_path: Path) -> None:
    state = {"0.0.linear.weight": torch.eye(64), "0.0.linear.bias": torch.zeros(64)}
    source = write(tmp_path / "heads.safetensors", state)
    out = tmp_path / "heads.onnx"
    assert export(str(source), out, tiny_gguf, 8).startswith("1 heads over 320 tokens in 8 bits, ")
    heads = onnx_heads(out, width=64, vocab_size=320)
    assert heads.metadata[FINGERPRINT] == fingerprint(tiny_gguf)
    with pytest.raises(HeadsLoadError, match="is ONNX already"):
        export(str(out), tmp_path / "again.onnx", tiny_gguf, 8)
    out.rename(tmp_path / "kept.onnx")
    out.mkdir()
    with pytest.raises(OSError, match="directory"):
        export(str(source), out, tiny_gguf, 8)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "heads.onnx",
        "heads.safetensors",
        "kept.onnx",
    ]
