"""Scores heads beside each other, on the same held-out answers.

    python -m training.heads.compare HEADS... --answers heads.safetensors.work/states/*

Prompts whose answers are held out are the same in every collection and every training, so none of the heads
has seen them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from engine import EngineError
from engine.llama.context import usable_cores
from engine.llama.model import default_model_path
from engine.medusa.loader import load_heads
from engine.medusa.model_rows import ModelRows
from training.base.errors import TrainingError
from training.collection.dataset import Dataset
from training.heads.scores import Scores, evaluate


def compare(model: str, answers: tuple[Path, ...], heads: list[str]) -> dict[str, Scores]:
    """Scores by file. answers: collections. Raises CollectionError or HeadsLoadError."""
    data = Dataset(answers)
    held_out = data.held_out.greedy()
    rows = ModelRows(model)
    found = {}
    for path in heads:
        loaded = load_heads(
            path, width=data.width, vocab_size=data.vocab_size, model_rows=rows, threads=usable_cores()
        )
        found[path] = evaluate(loaded, held_out)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.heads.compare", description=__doc__.split("\n")[0]
    )
    parser.add_argument("heads", nargs="+", help="files")
    parser.add_argument(
        "--answers", type=Path, nargs="+", required=True, help="collections: what train-heads made"
    )
    parser.add_argument(
        "--model", default=default_model_path(), help="GGUF path (default: the packaged model)"
    )
    options = parser.parse_args()
    try:
        found = compare(options.model, tuple(options.answers), options.heads)
    except (TrainingError, EngineError) as error:
        sys.exit(f"error: {error}")
    for path, scores in found.items():
        print(f"{path}: {scores.tokens} tokens; {scores.text()}")


if __name__ == "__main__":
    main()
