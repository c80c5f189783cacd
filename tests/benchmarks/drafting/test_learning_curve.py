"""The learning curve of heads, over what a tiny model wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

torch = pytest.importorskip("torch", reason="the extra medusa is not installed")

from tests.benchmarks.drafting.learning_curve import COLUMNS, curve  # noqa: E402
from tests.engine.helpers.tiny import write_tiny_gguf  # noqa: E402
from tests.training.conftest import options  # noqa: E402
from training.collection.collect import collect  # noqa: E402
from training.collection.dataset import Dataset  # noqa: E402
from training.heads.recipe import Recipe  # noqa: E402
from training.prompts.prompts import compose, write_prompts  # noqa: E402

pytestmark = pytest.mark.slow

RECIPE = Recipe(heads=2, vocabulary=200, epochs=1, rows=64)


def test_each_part_of_the_answers_trains_heads_of_its_own(tmp_path: Path) -> None:
    console = Console(quiet=True)
    model, prompts, answers = (
        write_tiny_gguf(tmp_path / "tiny.gguf"),
        tmp_path / "p.jsonl",
        tmp_path / "states",
    )
    write_prompts(prompts, compose(40))
    collect(options(model, prompts, answers, tokens=2000), console)
    few, all_, medusa = curve(model, [answers], [4, 1], RECIPE, console)
    assert [row[0] for row in (few, all_, medusa)] == ["Hydra", "Hydra", "Medusa"]
    assert medusa[1:3] == all_[1:3], "the same answers"
    whole = Dataset([answers]).train.tokens
    assert all_[1] == f"{whole:,}"
    assert 0.15 * whole < int(few[1].replace(",", "")) < 0.35 * whole
    assert 0 < int(few[2]) < int(all_[2]), "steps are in proportion to tokens"
    right, tokens = all_[len(COLUMNS) : -1], float(all_[-1])
    assert len(right) == RECIPE.heads
    assert all(0 <= float(share) <= 1 for share in right)
    assert 1 <= tokens <= 1 + RECIPE.heads
    assert few[len(COLUMNS) :] != all_[len(COLUMNS) :], "more answers change the heads"
