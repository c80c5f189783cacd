"""What training refuses, and says in one sentence: at the start, if it can be known there."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

torch = pytest.importorskip("torch", reason="the extra medusa is not installed")

from engine import ModelLoadError  # noqa: E402
from engine.medusa.layouts import HeadsLoadError  # noqa: E402
from tests.engine.helpers.tiny import write_tiny_gguf, write_tiny_mamba  # noqa: E402
from tests.training.heads.conftest import options  # noqa: E402
from training.base.errors import TrainingError  # noqa: E402
from training.heads.heads_file import metadata  # noqa: E402
from training.heads.recipe import Recipe  # noqa: E402
from training.heads.train import check, train  # noqa: E402

pytestmark = pytest.mark.slow


def test_states_of_another_model_are_refused(states: Path, tmp_path: Path, quiet: Console) -> None:
    other = write_tiny_gguf(tmp_path / "other.gguf", seed=8)
    with pytest.raises(TrainingError, match=r"not from the model .*other\.gguf"):
        train(options(other, states, tmp_path), quiet)


@pytest.mark.parametrize("device", ["nonsense", "cuda:99", "meta"])
def test_a_device_that_is_not_there_is_named(
    tiny_gguf: str, states: Path, tmp_path: Path, quiet: Console, device: str
) -> None:
    with pytest.raises(TrainingError, match=f"no device {device}: "):
        train(options(tiny_gguf, states, tmp_path, device=device), quiet)
    with pytest.raises(TrainingError, match=f"no device {device}: "):
        check(options(tiny_gguf, states, tmp_path, device=device))


def test_what_would_fail_at_the_end_is_found_at_the_start(
    tiny_gguf: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = options(tiny_gguf, tmp_path / "states", tmp_path)
    check(given)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TrainingError, match=r"cannot write .*: File name too long"):
        check(replace(given, output=tmp_path / ("h" * 252)))
    with pytest.raises(ModelLoadError, match="no such file"):
        check(replace(given, model=str(tmp_path / "none.gguf")))
    with pytest.raises(TrainingError, match=r"cannot read .*none\.safetensors: No such file"):
        check(replace(given, begin=tmp_path / "none.safetensors"))
    (tmp_path / "text").write_text("no tensors in here")
    with pytest.raises(TrainingError, match=r"cannot read .*text: .*header"):
        check(replace(given, begin=tmp_path / "text"))
    for unread, why in (("none.safetensors", "No such file"), ("text", "header")):
        with pytest.raises(TrainingError, match=f"cannot read .*{unread}: .*{why}"):
            metadata(tmp_path / unread)
    mamba = write_tiny_mamba(tmp_path / "mamba.gguf")
    with pytest.raises(TrainingError, match="a recurrent model cannot discard"):
        check(replace(given, model=mamba))
    with monkeypatch.context() as missing:
        missing.setitem(sys.modules, "onnxruntime", None)
        with pytest.raises(HeadsLoadError, match="draft heads need onnxruntime: pip install"):
            check(given)
    monkeypatch.setattr("engine.medusa.model_rows.FINAL_NORM", "none.weight")
    with pytest.raises(HeadsLoadError, match=r"holds no none\.weight"):
        check(given)


def test_too_few_different_tokens_are_refused_before_training(
    tiny_gguf: str, states: Path, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.heads.train.draft_vocabulary", lambda *_: np.arange(7, dtype=np.int32))
    with pytest.raises(TrainingError, match="hold 7 different tokens, and heads need 8: collect more"):
        train(options(tiny_gguf, states, tmp_path), quiet)


def test_what_cannot_be_written_is_named(
    tiny_gguf: str, states: Path, tmp_path: Path, quiet: Console
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match=r"cannot write .*checkpoint\.pt"):
        train(options(tiny_gguf, states, tmp_path, work=tmp_path / "file" / "work"), quiet)
    with pytest.raises(TrainingError, match=r"cannot write .*heads\.safetensors"):
        train(options(tiny_gguf, states, tmp_path, output=tmp_path / "none" / "heads.safetensors"), quiet)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 0}, "heads must be"),
        ({"layers": 9}, "layers must be"),
        ({"vocabulary": 7}, "vocabulary must be"),
        ({"epochs": 0}, "epochs must be"),
        ({"rows": 0}, "rows must be"),
        ({"learning_rate": 0.0}, "learning_rate must be"),
        ({"warm_up": 1.0}, "warm_up must be"),
        ({"soft": 2.0}, "soft must be"),
        ({"patience": 0}, "patience must be"),
    ],
)
def test_an_impossible_recipe_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        Recipe(**change)
