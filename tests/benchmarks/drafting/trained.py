"""Trained heads beside each other: the table of `training.heads.compare`.

python -m tests.benchmarks.drafting.trained HEADS... --answers heads.safetensors.work/states/*
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from engine import EngineError
from engine.llama.model import default_model_path
from engine.speculative.setup import shipped_heads
from tests.benchmarks.common import ToolFailed
from tests.support.measuring.report import Report, add_record, shown_command
from training.base.errors import TrainingError
from training.heads import heads_file
from training.heads.compare import compare
from training.heads.scores import Scores


def scored(heads: Path) -> Scores:
    """By their trainer, as the file says. Raises ToolFailed or TrainingError."""
    metadata = heads_file.metadata(heads)
    if "scores" not in metadata:
        raise ToolFailed(f"{heads} does not say how often its heads are right: give --answers")
    return Scores(**json.loads(metadata["scores"]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    packaged = shipped_heads(default_model_path())
    parser.add_argument("heads", nargs="*", default=[str(packaged)], help="files (default: the packaged one)")
    parser.add_argument("--answers", type=Path, nargs="+", help="what train-heads collected")
    parser.add_argument("--model", default=default_model_path(), help="a GGUF (default: the packaged one)")
    add_record(parser)
    options = parser.parse_args()
    try:
        if options.answers:
            found = compare(options.model, tuple(options.answers), options.heads)
        else:
            found = {path: scored(Path(path)) for path in options.heads}
    except (TrainingError, EngineError, ToolFailed) as error:
        sys.exit(f"error: {error}")
    command = shown_command("tests.benchmarks.drafting.trained", sys.argv[1:])
    report = Report(command, options.record, Path(options.model).name)
    heads = max(len(scores.top1) for scores in found.values())
    columns = ("heads", *(f"head {number + 1}" for number in range(heads)), "tokens a step, chain of all")
    with report.table("trained", *columns) as table:
        for path, scores in found.items():
            shares = [f"{one:.3f} ({five:.3f})" for one, five in zip(scores.top1, scores.top5, strict=True)]
            missing = ["-"] * (heads - len(shares))
            table.row(Path(path).stem, *shares, *missing, f"{scores.tokens_per_step:.2f}")
        tokens = max(scores.tokens for scores in found.values())
        table.note(
            f"The best guess is right (one of the five best), of {tokens:,} tokens that were held out."
        )


if __name__ == "__main__":
    main()
