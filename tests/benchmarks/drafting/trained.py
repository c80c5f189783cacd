"""Trained heads beside each other, on answers to prompts that none of them learned from.

    python -m tests.benchmarks.drafting.trained --answers heads.safetensors.work/states

The packaged heads, and those that were packaged at earlier commits, which are read from the history.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from engine import EngineError
from engine.llama.model import default_model_path
from engine.speculative.setup import shipped_heads
from tests.benchmarks.common import ToolFailed, last_words
from tests.support.measuring.report import Report, add_record, shown_command
from tests.support.workers import ROOT
from training.base.errors import TrainingError
from training.collection.parallel import collections_in
from training.heads.compare import compare

EARLIER = {  # commit -> what its heads are called, in the order of the table
    "4d87277^": "Medusa, before 4d87277",
    "59f7833": "Hydra, 59f7833",
    "7f8a7be": "Hydra, 7f8a7be",
}
PACKAGED = "Hydra, packaged"


def earlier(packaged: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """What was packaged in the place of this file at each of EARLIER. Raises ToolFailed."""
    for number, (commit, name) in enumerate(EARLIER.items()):
        found = folder / f"{number}.safetensors"
        command = ["git", "show", f"{commit}:{packaged.relative_to(ROOT)}"]
        with found.open("wb") as file:
            done = subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise ToolFailed(f"no heads of {commit}: {last_words(done.stderr)}")
        yield name, found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--answers", type=Path, nargs="+", required=True, help="what train-heads collected")
    add_record(parser)
    options = parser.parse_args()
    model = default_model_path()
    packaged = shipped_heads(model)
    assert packaged, "the default model has heads"
    command = shown_command("tests.benchmarks.drafting.trained", sys.argv[1:])
    report = Report(command, options.record, Path(model).name)
    try:
        with tempfile.TemporaryDirectory(prefix="medusaq-bench-") as folder:
            files = {**dict(earlier(packaged, Path(folder))), PACKAGED: packaged}
            found = compare(model, collections_in(options.answers), [str(path) for path in files.values()])
    except (TrainingError, EngineError, ToolFailed) as error:
        sys.exit(f"error: {error}")
    scores = dict(zip(files, found.values(), strict=True))
    heads = max(len(each.top1) for each in scores.values())
    columns = ("heads", *(f"head {number + 1}" for number in range(heads)), "tokens a step, chain of all")
    with report.table("trained", *columns) as table:
        for name, each in scores.items():
            shares = [f"{one:.3f} ({five:.3f})" for one, five in zip(each.top1, each.top5, strict=True)]
            missing = ["-"] * (heads - len(shares))
            table.row(name, *shares, *missing, f"{each.tokens_per_step:.3f}")
        tokens = max(each.tokens for each in scores.values())
        table.note(
            f"The best guess is right (one of the five best), of {tokens:,} tokens that were held out."
        )


if __name__ == "__main__":
    main()
