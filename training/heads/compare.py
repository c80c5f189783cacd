"""Scores heads beside each other, on the same held-out answers.

    python -m training.heads.compare HEADS... --answers heads.safetensors.work/states

Held out are the prompts that were held out from the training of each of them, so none of the heads has seen
them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from common.processor import usable_cores
from engine import EngineError
from engine.llama.model import default_model_path
from engine.medusa.loader import load_heads
from engine.medusa.model_rows import ModelRows
from training.base.errors import TrainingError
from training.collection.dataset import Dataset, held_out_share
from training.collection.parallel import collections_in
from training.collection.shards import Collection
from training.heads.scores import Scores, evaluate


def compare(model: str, answers: tuple[Path, ...], heads: list[str]) -> dict[str, Scores]:
    """Scores by file. answers: collections. Raises CollectionError or HeadsLoadError."""
    identity, rows = Collection(answers[0]).identity, ModelRows(model)
    width, vocab_size, threads = identity.width, identity.vocab_size, usable_cores()
    loaded = {
        path: load_heads(path, width=width, vocab_size=vocab_size, model_rows=rows, threads=threads)
        for path in heads
    }
    shares = [held_out_share(each.metadata) for each in loaded.values()]
    held_out = Dataset(answers, min(shares)).held_out.greedy()
    return {path: evaluate(each, held_out) for path, each in loaded.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.heads.compare", description=__doc__.split("\n")[0]
    )
    parser.add_argument("heads", nargs="+", help="files")
    parser.add_argument(
        "--answers", type=Path, nargs="+", required=True, help="folders of answers that train-heads collected"
    )
    parser.add_argument(
        "--model", default=default_model_path(), help="GGUF path (default: the packaged model)"
    )
    options = parser.parse_args()
    try:
        found = compare(options.model, collections_in(options.answers), options.heads)
    except (TrainingError, EngineError) as error:
        sys.exit(f"error: {error}")
    for path, scores in found.items():
        print(f"{path}: {scores.tokens} tokens; {scores.text()}")


if __name__ == "__main__":
    main()
