"""Every layout of Medusa heads against a reference in torch.nn; and files that must be refused.

The reference is built as the publishers build theirs, so that its state_dict has their keys.
"""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from engine.medusa.calibration import Calibration
from engine.medusa.layouts import HeadsLoadError
from engine.medusa.loader import load_heads
from engine.medusa.medusa_source import HeadSource
from tests.engine.helpers.float_heads import FloatHeads

WIDTH, VOCAB, HEADS, TOP = 24, 90, 3, 5
LM_HEAD = np.random.default_rng(5).standard_normal((VOCAB, WIDTH)).astype(np.float32)
TOKEN_MAP = np.random.default_rng(6).permutation(VOCAB)[:40]
HIDDEN = np.random.default_rng(7).standard_normal((6, WIDTH)).astype(np.float32)

State = dict[str, Tensor]


def lm_head(ids: NDArray[np.int32] | None) -> NDArray[np.float32]:
    return LM_HEAD.copy() if ids is None else LM_HEAD[ids]


def load(path: Path) -> FloatHeads:
    return FloatHeads.load(str(path), width=WIDTH, vocab_size=VOCAB, lm_head=lm_head)


# The reference


class ResBlock(nn.Module):
    """FasterDecoding/Medusa: {head}.{layer}.linear."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.silu(self.linear(x))


def medusa(layers: int, own_lm_head: bool) -> nn.ModuleList:
    """v1 with an lm_head of its own for each head, v2 without."""
    torch.manual_seed(layers)
    tail = [nn.Linear(WIDTH, VOCAB, bias=False)] if own_lm_head else []
    return nn.ModuleList(
        nn.Sequential(
            *(ResBlock() for _ in range(layers)), *(nn.Linear(WIDTH, VOCAB, bias=False) for _ in tail)
        )
        for _ in range(HEADS)
    )


class VllmBlock(nn.Module):
    def __init__(self, layers: int, bias: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=bias) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + nn.functional.silu(layer(x))
        return x


class Vllm(nn.Module):
    """vLLM: blocks.{head}.layers.{layer}, lm_heads.{head} over `rows` tokens."""

    def __init__(self, layers: int, rows: int, lm_heads: int = HEADS, bias: bool = False) -> None:
        super().__init__()
        torch.manual_seed(layers)
        self.blocks = nn.ModuleList(VllmBlock(layers, bias) for _ in range(HEADS))
        self.lm_heads = nn.ModuleList(nn.Linear(WIDTH, rows, bias=False) for _ in range(lm_heads))


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


def write(path: Path, state: State, metadata: dict[str, str] | None = None) -> Path:
    if path.suffix == ".safetensors":
        save_file({key: value.contiguous() for key, value in state.items()}, path, metadata)
    else:
        torch.save(state, path)
    return path


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


# Refusals


def refused(path: Path, reason: str, **options: object) -> None:
    defaults = {"width": WIDTH, "vocab_size": VOCAB, "lm_head": lm_head}
    with pytest.raises(HeadsLoadError, match=reason) as error:
        load_heads(str(path), **{**defaults, **options})  # type: ignore[arg-type]
    assert error.value.code == "heads_load_failed"
    assert error.value.message.startswith(f"{path}: ")
    assert "\n" not in error.value.message


def test_another_hidden_size(tmp_path: Path) -> None:
    path = write(tmp_path / "heads.pt", medusa(1, own_lm_head=False).state_dict())
    refused(path, "for models of hidden size 24, and this one has 576", width=576)


def test_another_vocabulary(tmp_path: Path) -> None:
    path = write(tmp_path / "heads.pt", medusa(1, own_lm_head=True).state_dict())
    refused(path, "for a vocabulary of 90 tokens, and the model has 49152", vocab_size=49152)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"hidden_size": 4096}, "hidden size 4096, and this one has 24"),
        ({"vocab_size": 32000}, "vocabulary of 32000 tokens, and the model has 90"),
        ({"truncated_vocab_size": 50}, "no token_map, though its vocabulary is cut to 50 of 90"),
        ({"logit_scale": "1"}, "logit_scale in config.json is no number"),
    ],
)
def test_a_config_for_another_model(tmp_path: Path, config: dict[str, object], reason: str) -> None:
    write(tmp_path / "medusa_lm_head.pt", medusa(1, own_lm_head=False).state_dict())
    (tmp_path / "config.json").write_text(json.dumps(config))
    refused(tmp_path, reason)


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([3, 4, 90], "token_map names token 90, and the model has 90"),
        ([3, -1, 4], "token_map names token -1"),
        ([3, 2**40], f"token_map names token {2**40}"),
        ([3, 4, 3], "token_map names a token twice"),
        ([3, 4, 5], "token_map names 3 tokens, and 8 is the least"),
        ([], "token_map is no list of token ids"),
        ([[1, 2]], "token_map is no list of token ids"),
        ([0.5, 1.0], "token_map is no list of token ids"),
    ],
)
def test_a_token_map_that_fits_no_vocabulary(tmp_path: Path, ids: list[object], reason: str) -> None:
    tensor = torch.tensor(ids, dtype=None if ids else torch.int64)
    path = write(tmp_path / "heads.pt", {**medusa(1, own_lm_head=False).state_dict(), "token_map": tensor})
    refused(path, reason)


def test_a_token_map_of_another_length_than_the_config_says(tmp_path: Path) -> None:
    write(tmp_path / "model.pt", {**Vllm(1, 40).state_dict(), "token_map": torch.from_numpy(TOKEN_MAP)})
    (tmp_path / "config.json").write_text('{"truncated_vocab_size": 41}')
    refused(tmp_path, "token_map names 40 tokens, and truncated_vocab_size is 41")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("0.0.linear.weight", torch.ones(WIDTH, WIDTH + 1), r"shape \(24, 25\) where \(24, 24\) is due"),
        ("1.0.linear.weight", torch.ones(()), r"1\.0\.linear\.weight has the shape \(\)"),
        ("2.0.linear.bias", torch.ones(1), r"shape \(1,\) where \(24,\) is due"),
        ("0.1.weight", torch.ones(VOCAB, WIDTH - 1), r"shape \(90, 23\) where \(90, 24\) is due"),
        ("0.1.weight", torch.ones(()), "vocabulary of 0 tokens"),
        ("1.0.linear.weight", torch.ones(WIDTH, WIDTH, dtype=torch.int64), "no plain numbers"),
        ("1.0.linear.weight", torch.ones(WIDTH, WIDTH, dtype=torch.complex64), "no plain numbers"),
        ("1.0.linear.weight", torch.eye(WIDTH).to_sparse(), "no plain numbers"),
        ("1.0.linear.weight", torch.full((WIDTH, WIDTH), torch.nan), "not finite"),
        ("0.1.weight", torch.full((VOCAB, WIDTH), torch.inf), "not finite"),
        ("0.1.weight", [1, 2], "other things than weights"),
        ("1.0.norm.weight", torch.ones(WIDTH), "no known layout"),
    ],
)
def test_weights_of_a_wrong_kind(tmp_path: Path, key: str, value: object, reason: str) -> None:
    state = {**medusa(1, own_lm_head=True).state_dict(), key: value}
    torch.save(state, tmp_path / "heads.pt")
    refused(tmp_path / "heads.pt", reason)


def test_a_model_whose_lm_head_is_not_its_vocabularys(tmp_path: Path) -> None:
    path = write(tmp_path / "heads.pt", medusa(1, own_lm_head=False).state_dict())
    refused(path, r"lm_head has the shape \(89, 24\) where \(90, 24\) is due", lm_head=lambda _: LM_HEAD[:-1])


@pytest.mark.parametrize("content", [[1, 2], {1: torch.ones(2)}, torch.ones(2), {}, {"state": {}}])
def test_pickles_of_something_else(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "heads.pt")
    refused(tmp_path / "heads.pt", ".")


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_folder_with_two_files_of_heads(tmp_path: Path, suffix: str) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.{suffix}", medusa(1, own_lm_head=False).state_dict())
    with pytest.raises(HeadsLoadError, match=rf"a\.{suffix} and b\.{suffix} both hold 0\.0\.linear\.\w+"):
        load(tmp_path)


def test_no_file(tmp_path: Path) -> None:
    refused(tmp_path / "heads.pt", "no such file or folder")


@NAMES
@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.999])
def test_a_truncated_file(tmp_path: Path, name: str, share: float) -> None:
    path = write(tmp_path / name, medusa(1, own_lm_head=True).state_dict())
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    refused(path, "cannot be read|refused")


@NAMES
def test_a_damaged_file_is_refused_or_harmless(tmp_path: Path, name: str) -> None:
    """Damage in the numbers themselves cannot be told; anywhere else it is refused, in one line."""
    path = write(tmp_path / name, medusa(1, own_lm_head=True).state_dict())
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    refusals = []
    for _ in range(60):
        damaged = bytearray(content)
        for at in rng.integers(0, min(len(content), 4000), size=3):
            damaged[at] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            heads = load_heads(str(path), width=WIDTH, vocab_size=VOCAB, lm_head=lm_head)
        except HeadsLoadError as error:
            refusals.append(error.message)
        else:
            assert np.isfinite(heads.propose(HIDDEN, HEADS, TOP)[1]).all()
    assert refusals
    assert not any("\n" in message for message in refusals)


@pytest.mark.parametrize(
    "content", [b"", b"\x80", b"\x00" * 100, b"PK\x03\x04" + b"\x00" * 100, b"GGUF" * 50]
)
@NAMES
def test_rubbish(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, "cannot be read|refused")


class Payload:
    """Unpickled in good faith, it runs a command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


def as_pickle(content: object) -> bytes:
    return pickle.dumps(content)


def as_old_torch_file(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def as_torch_file(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("pack", [as_pickle, as_old_torch_file, as_torch_file])
@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "heads.bin", "medusa_lm_head.safetensors"])
def test_a_pickle_that_runs_a_command_does_not(
    tmp_path: Path, name: str, pack: Callable[[object], bytes]
) -> None:
    marker = tmp_path / "ran"
    state = {**medusa(1, own_lm_head=True).state_dict(), "0.9.weight": Payload(f"touch {marker}")}
    (tmp_path / name).write_bytes(pack(state))
    refused(tmp_path / name, "cannot be read|refused")
    assert not marker.exists()


def test_the_command_in_it_is_a_live_one(tmp_path: Path) -> None:
    """Without this control the test above would prove nothing."""
    marker = tmp_path / "ran"
    pickle.loads(as_pickle(Payload(f"touch {marker}")))
    assert marker.exists()
