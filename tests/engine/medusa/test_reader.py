"""Every layout of draft heads against a reference in torch.nn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from engine.medusa.calibration import Calibration
from engine.medusa.medusa_source import HeadSource
from tests.engine.helpers.float_heads import FloatHeads
from tests.engine.helpers.torch_heads import (
    HEADS,
    HIDDEN,
    LM_HEAD,
    TOKEN_MAP,
    TOP,
    VOCAB,
    WIDTH,
    Vllm,
    load,
    medusa,
    write,
)


def check(heads: FloatHeads, logits: list[Tensor], token_map: NDArray[np.int64] | None = None) -> None:
    """logits: of the reference for HIDDEN, by head."""
    tokens, probabilities = heads.propose(HIDDEN, HEADS, TOP)
    assert tokens.shape == probabilities.shape == (len(HIDDEN), HEADS, TOP)
    assert tokens.dtype == np.int32
    assert probabilities.dtype == np.float32
    assert (heads.heads, heads.width) == (HEADS, WIDTH)
    for head, reference in enumerate(logits):
        best, rows = reference.softmax(-1).topk(TOP)
        expected = rows.numpy() if token_map is None else token_map[rows.numpy()]
        assert np.array_equal(tokens[:, head], expected)
        np.testing.assert_allclose(probabilities[:, head], best.detach().numpy(), rtol=1e-4)


def states(modules: nn.ModuleList) -> list[Tensor]:
    return [module(torch.from_numpy(HIDDEN)) for module in modules]


def over_the_models_lm_head(
    outputs: list[Tensor], rows: NDArray[np.int64] | slice = slice(None)
) -> list[Tensor]:
    return [output @ torch.from_numpy(LM_HEAD[rows]).T for output in outputs]


NAMES = pytest.mark.parametrize("name", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])


@NAMES
@pytest.mark.parametrize("layers", [1, 2])
def test_v1(tmp_path: Path, name: str, layers: int) -> None:
    reference = medusa(layers, own_lm_head=True)
    heads = load(write(tmp_path / name, reference.state_dict()))
    assert (heads.layers, heads.draft_vocabulary) == (layers, None)
    check(heads, states(reference))


@NAMES
@pytest.mark.parametrize("layers", [1, 2])
def test_v2(tmp_path: Path, name: str, layers: int) -> None:
    reference = medusa(layers, own_lm_head=False)
    heads = load(write(tmp_path / name, reference.state_dict()))
    assert heads.layers == layers
    check(heads, over_the_models_lm_head(states(reference)))


def test_old_pickles_without_a_zip_around_them(tmp_path: Path) -> None:
    reference = medusa(1, own_lm_head=True)
    torch.save(reference.state_dict(), tmp_path / "heads.pt", _use_new_zipfile_serialization=False)
    check(load(tmp_path / "heads.pt"), states(reference))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@NAMES
def test_half_precision_files(tmp_path: Path, name: str, dtype: str) -> None:
    reference = medusa(1, own_lm_head=True).to(getattr(torch, dtype))
    path = write(tmp_path / name, reference.state_dict())
    check(load(path), states(reference.float()))


def test_ours_has_a_token_map_and_metadata(tmp_path: Path) -> None:
    reference = medusa(1, own_lm_head=False)
    calibration = Calibration(HEADS).to_json()
    state = {**reference.state_dict(), "token_map": torch.from_numpy(TOKEN_MAP.astype(np.int32))}
    metadata = {"base_model_sha256": "00ff", "calibration": calibration}
    heads = load(write(tmp_path / "heads.safetensors", state, metadata))
    assert heads.metadata == metadata
    assert heads.draft_vocabulary is not None
    assert heads.draft_vocabulary.dtype == np.int32
    assert np.array_equal(heads.draft_vocabulary, TOKEN_MAP)
    check(heads, over_the_models_lm_head(states(reference), TOKEN_MAP), TOKEN_MAP)
    HeadSource(heads)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("own_lm_head", [True, False])
def test_a_full_models_heads_beside_its_backbone(tmp_path: Path, name: str, own_lm_head: bool) -> None:
    reference = medusa(1, own_lm_head)
    backbone = {
        "model.layers.0.self_attn.q_proj.weight": torch.ones(3, 3),
        "lm_head.weight": torch.ones(2, 2),
    }
    heads = {f"medusa_head.{key}": value for key, value in reference.state_dict().items()}
    write(tmp_path / name, {**backbone, **heads})
    expected = states(reference) if own_lm_head else over_the_models_lm_head(states(reference))
    check(load(tmp_path), expected)


def test_a_full_models_heads_in_any_of_its_shards(tmp_path: Path) -> None:
    reference = medusa(1, own_lm_head=True)
    state = {f"medusa_head.{key}": value for key, value in reference.state_dict().items()}
    keys = sorted(state)
    write(tmp_path / "model-00001-of-00003.safetensors", {"model.norm.weight": torch.ones(3)})
    write(tmp_path / "model-00002-of-00003.safetensors", {key: state[key] for key in keys[:4]})
    write(tmp_path / "model-00003-of-00003.safetensors", {key: state[key] for key in keys[4:]})
    check(load(tmp_path), states(reference))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_vllm(tmp_path: Path, layers: int, bias: bool) -> None:
    reference = Vllm(layers, VOCAB, bias=bias)
    write(tmp_path / "model.safetensors", reference.state_dict())
    config = {"hidden_size": WIDTH, "vocab_size": VOCAB, "truncated_vocab_size": VOCAB, "num_heads": 99}
    (tmp_path / "config.json").write_text(json.dumps(config))
    outputs = states(reference.blocks)
    check(load(tmp_path), [head(x) for head, x in zip(reference.lm_heads, outputs, strict=True)])


@pytest.mark.parametrize("rows", [VOCAB, len(TOKEN_MAP)])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_vllm_with_a_token_map(tmp_path: Path, name: str, rows: int) -> None:
    """Its lm_heads have the rows of the map, or all, of which it takes those of the map."""
    reference = Vllm(1, rows)
    write(tmp_path / name, {**reference.state_dict(), "token_map": torch.from_numpy(TOKEN_MAP)})
    (tmp_path / "config.json").write_text(json.dumps({"truncated_vocab_size": len(TOKEN_MAP)}))
    outputs = states(reference.blocks)
    logits = [head(x) for head, x in zip(reference.lm_heads, outputs, strict=True)]
    if rows == VOCAB:
        logits = [row[:, torch.from_numpy(TOKEN_MAP)] for row in logits]
    check(load(tmp_path), logits, TOKEN_MAP)


def test_vllm_with_one_lm_head_for_all(tmp_path: Path) -> None:
    reference = Vllm(1, VOCAB, lm_heads=1)
    path = write(tmp_path / "model.safetensors", reference.state_dict())
    check(load(path), [reference.lm_heads[0](x) for x in states(reference.blocks)])


def test_vllm_with_a_logit_scale(tmp_path: Path) -> None:
    reference = Vllm(1, VOCAB)
    write(tmp_path / "model.safetensors", reference.state_dict())
    (tmp_path / "config.json").write_text(json.dumps({"logit_scale": 0.25}))
    outputs = states(reference.blocks)
    check(load(tmp_path), [0.25 * head(x) for head, x in zip(reference.lm_heads, outputs, strict=True)])


def test_heads_are_counted_whatever_the_config_says(tmp_path: Path) -> None:
    reference = medusa(1, own_lm_head=True)
    write(tmp_path / "medusa_lm_head.pt", reference.state_dict())
    (tmp_path / "config.json").write_text('{"medusa_num_heads": 2, "medusa_num_layers": 7}')
    heads = load(tmp_path)
    assert (heads.heads, heads.layers) == (HEADS, 1)
