"""Options of a training that takes seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from training.heads.recipe import Recipe, TrainOptions

SMALL = Recipe(heads=2, vocabulary=200, epochs=2, rows=256)


def options(tiny_gguf: str, states: Path, folder: Path, **changes: Any) -> TrainOptions:
    output = folder / "heads.safetensors"
    return replace(TrainOptions(tiny_gguf, (states,), output, folder / "work", SMALL, "cpu"), **changes)
