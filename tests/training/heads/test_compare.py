"""`python -m training.heads.compare`: what it prints is what training itself found."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

torch = pytest.importorskip("torch", reason="the extra medusa is not installed")

from safetensors import safe_open  # noqa: E402

from training.heads.compare import main  # noqa: E402
from training.heads.recipe import Kind, Recipe, TrainOptions  # noqa: E402
from training.heads.train import train  # noqa: E402

pytestmark = pytest.mark.slow


def trained(model: str, states: Path, folder: Path, kind: Kind, quiet: Console) -> Path:
    recipe = Recipe(kind=kind, heads=2, layers=1, vocabulary=200, epochs=1, rows=256)
    output = folder / f"{kind}.safetensors"
    train(TrainOptions(model, (states,), output, folder / kind, recipe, "cpu"), quiet)
    return output


def printed(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", ["compare", *arguments])
    main()
    return capsys.readouterr().out


def test_it_prints_the_scores_that_training_found(
    tiny_gguf: str,
    states: Path,
    tmp_path: Path,
    quiet: Console,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = [trained(tiny_gguf, states, tmp_path, kind, quiet) for kind in Kind]
    arguments = [*map(str, files), "--answers", str(states), "--model", tiny_gguf]
    lines = printed(arguments, monkeypatch, capsys).splitlines()
    assert len(lines) == len(files)
    for path, line in zip(files, lines, strict=True):
        with safe_open(path, framework="pt") as file:
            scores = json.loads(file.metadata()["scores"])
        shares = zip(scores["top1"], scores["top5"], strict=True)
        heads = " ".join(f"{one:.3f}/{five:.3f}" for one, five in shares)
        assert scores["tokens"] > 0
        assert line == (
            f"{path}: {scores['tokens']} tokens; "
            f"{scores['tokens_per_step']:.3f} tokens a step; top-1/top-5 {heads}"
        )


@pytest.mark.parametrize(
    ("heads", "answers", "says"), [("none.safetensors", None, "none.safetensors"), (None, "none", "none")]
)
def test_what_is_not_there_is_named(
    heads: str | None,
    answers: str | None,
    says: str,
    tiny_gguf: str,
    states: Path,
    tmp_path: Path,
    quiet: Console,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / heads if heads else trained(tiny_gguf, states, tmp_path, Kind.HYDRA, quiet)
    folder = tmp_path / answers if answers else states
    with pytest.raises(SystemExit, match=says):
        printed([str(path), "--answers", str(folder), "--model", tiny_gguf], monkeypatch, capsys)
