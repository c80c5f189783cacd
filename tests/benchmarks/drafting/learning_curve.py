"""The learning curve of heads: how often they are right after more and more of the same answers.

    python -m tests.benchmarks.drafting.learning_curve --answers heads.safetensors.work/states

Heads begin anew for each part of the answers, and see each token of it once, so that steps are in proportion
to tokens. Smaller parts lie in larger ones; draft vocabulary and held-out answers are the same. The last
row has Medusa heads that learn from the largest.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from engine import EngineError
from engine.llama.model import default_model_path
from engine.medusa.model_rows import ModelRows
from tests.benchmarks.common import positive
from tests.support.measuring.report import Report, add_record, shown_command
from training.base.errors import TrainingError
from training.collection.dataset import Dataset, draft_vocabulary
from training.collection.parallel import collections_in
from training.heads.recipe import Kind, Recipe, TrainOptions
from training.heads.scores import evaluate
from training.heads.training_loop import Run

PARTS = (8, 4, 2, 1)  # one of so many answers
RECIPE = Recipe(epochs=1)
COLUMNS = ("heads", "tokens to learn from", "steps", "minutes")


def curve(
    model: str, answers: Sequence[Path], parts: Sequence[int], recipe: Recipe, console: Console
) -> Iterator[list[str]]:
    """For each part the cells of a row, as it is trained. answers: collections. Raises TrainingError."""
    data, rows = Dataset(answers), ModelRows(model)
    vocabulary = draft_vocabulary(data.frequencies(), recipe.vocabulary)
    lm_head, embeddings = rows.lm_head(vocabulary), rows.embeddings()
    train, held_out = data.train, data.held_out.greedy()
    for kind, part in [(Kind.HYDRA, part) for part in parts] + [(Kind.MEDUSA, min(parts))]:
        data.train = train[::part]
        seen = embeddings if kind is Kind.HYDRA else None
        with tempfile.TemporaryDirectory(prefix="medusaq-bench-") as folder:
            of_kind = replace(recipe, kind=kind)
            options = TrainOptions(model, tuple(answers), Path(folder), Path(folder), of_kind)
            run = Run(options, data, vocabulary, lm_head, seen)
            start = time.perf_counter()
            run.run(console)
            minutes = (time.perf_counter() - start) / 60
        scores = evaluate(run.proposals(), held_out)
        right = [f"{share:.3f}" for share in scores.top1]
        yield [
            *(kind.capitalize(), f"{data.train.tokens:,}", str(run.step), f"{minutes:.1f}"),
            *(*right, f"{scores.tokens_per_step:.3f}"),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--answers", type=Path, nargs="+", required=True, help="what train-heads collected")
    parser.add_argument("--model", default=default_model_path(), help="a GGUF (default: the packaged one)")
    parser.add_argument(
        "--parts", type=positive, nargs="+", default=PARTS, help="one of so many answers (default: 8 4 2 1)"
    )
    add_record(parser)
    options = parser.parse_args()
    command = shown_command("tests.benchmarks.drafting.learning_curve", sys.argv[1:])
    report = Report(command, options.record, Path(options.model).name)
    heads = (f"head {number + 1}" for number in range(RECIPE.heads))
    columns = (*COLUMNS, *heads, "tokens a step, chain of all")
    try:
        with report.table("learning-curve", *columns) as table:
            console = Console(stderr=True)
            for row in curve(options.model, collections_in(options.answers), options.parts, RECIPE, console):
                table.row(*row)
            table.note(
                "The best guess is right, on held-out greedy answers. Some of these have chosen the best "
                "weights of each training."
            )
    except (TrainingError, EngineError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
