"""`python -m training.heads.compare`: what it prints is what training itself found."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
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


@pytest.fixture
def compare(
    tiny_gguf: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[list[Path], Path], str]:
    """Runs it with heads files and a collection, and returns what it prints."""

    def run(heads: list[Path], answers: Path) -> str:
        arguments = ["compare", *map(str, heads), "--answers", str(answers), "--model", tiny_gguf]
        monkeypatch.setattr(sys, "argv", arguments)
        main()
        return capsys.readouterr().out

    return run


def test_it_prints_the_scores_that_training_found(
    compare: Callable[[list[Path], Path], str], tiny_gguf: str, states: Path, tmp_path: Path, quiet: Console
) -> None:
    files = [trained(tiny_gguf, states, tmp_path, kind, quiet) for kind in Kind]
    lines = compare(files, states).splitlines()
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


def test_what_is_not_there_is_named(
    compare: Callable[[list[Path], Path], str], states: Path, tmp_path: Path
) -> None:
    heads, answers = tmp_path / "none.safetensors", tmp_path / "none"
    with pytest.raises(SystemExit, match=r"none\.safetensors: no such file"):
        compare([heads], states)
    with pytest.raises(SystemExit, match="none holds no collected states"):
        compare([heads], answers)
