"""Files of draft heads that must be refused: for another model, damaged, or dangerous."""

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

from engine.medusa.layouts import HeadsLoadError
from engine.medusa.loader import load_heads
from tests.engine.helpers.float_heads import GivenRows
from tests.engine.helpers.torch_heads import (
    EMBEDDINGS,
    HEADS,
    HIDDEN,
    LM_HEAD,
    MODEL_ROWS,
    TOKEN_MAP,
    TOP,
    VOCAB,
    WIDTH,
    Vllm,
    hydra,
    load,
    medusa,
    write,
)

NAMES = pytest.mark.parametrize("name", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])


def refused(path: Path, reason: str, **options: object) -> None:
    defaults = {"width": WIDTH, "vocab_size": VOCAB, "model_rows": MODEL_ROWS}
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
    refused(
        path, r"lm_head has the shape \(89, 24\) where \(90, 24\) is due", model_rows=GivenRows(LM_HEAD[:-1])
    )


def test_heads_that_see_the_path_read_one_embedding_more_each(tmp_path: Path) -> None:
    state = hydra(1).state_dict()
    for head, inputs in ((1, 2), (2, 5)):
        wrong = {**state, f"{head}.0.linear.weight": torch.ones(WIDTH, inputs * WIDTH)}
        reason = rf"shape \(24, {24 * inputs}\) where \(24, {24 * (2 + head)}\) is due"
        refused(write(tmp_path / "heads.pt", wrong), reason)


def test_a_model_whose_embeddings_are_not_its_vocabularys(tmp_path: Path) -> None:
    path = write(tmp_path / "heads.pt", hydra(1).state_dict())
    rows = GivenRows(LM_HEAD, EMBEDDINGS[:-1])
    refused(path, r"token embeddings has the shape \(89, 24\) where \(90, 24\) is due", model_rows=rows)


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
            heads = load_heads(str(path), width=WIDTH, vocab_size=VOCAB, model_rows=MODEL_ROWS)
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
