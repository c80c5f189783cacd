"""What `medusaq run --dry-run` says of the time, against what the run takes.

    python -m tests.benchmarks.inference.run_times [--only SHAPE ...] [--record]

As a user does it: --dry-run, --limit 10, --dry-run again, and the run. The cache of measurements is a new
one, so that the first estimate of the first shape knows of one short run alone.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import random
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from engine.llama.model import default_model_path
from tests.support.measuring.report import Report, Rows, add_record, shown_command
from tests.support.workers import ROOT

FIRST_ROWS = 10
WARM_UP_RUNS = 5  # until the speed of the model is measured, which takes idle time
LEAST, MOST = 0.7, 1.5  # of the estimate in relation to the time that was taken
NOT_MEASURED = "not known"
WORDS = ("harbour", "engine", "letter", "winter", "copper", "garden", "signal", "river", "market", "kitchen")


@dataclass(frozen=True, slots=True)
class Shape:
    """words: of each row's text, which begins differently in each."""

    rows: int
    words: int
    max_tokens: int
    template: str
    options: tuple[str, ...] = ()


SHAPES = {
    "short prompts, short answers, many rows": Shape(240, 6, 16, "Name three things like these: {{ text }}"),
    "short prompts, long answers": Shape(32, 6, 256, "Write a story about {{ text }}."),
    "short prompts, long answers, few rows": Shape(6, 6, 256, "Write a story about {{ text }}."),
    "long prompts, short answers": Shape(64, 300, 8, "{{ text }}\nWhich word comes most often?"),
    "long prompts, long answers": Shape(32, 300, 128, "{{ text }}\nWrite a summary of it."),
    "a schema": Shape(120, 30, 64, "{{ text }}\nJudge this text.", ("--json", "mood:good|bad,words:integer")),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(SHAPES), default=list(SHAPES), metavar="SHAPE")
    add_record(parser)
    options = parser.parse_args()
    command = shown_command("tests.benchmarks.inference.run_times", sys.argv[1:])
    report = Report(command, options.record, Path(default_model_path()).name)
    columns = ("rows", "said before", "said after ten rows", "taken", "ratio")
    with tempfile.TemporaryDirectory(prefix="medusaq-times-") as folder:
        medusaq = Medusaq(Path(folder))
        medusaq.warm_up()
        with report.table("run-times", "shape", *columns) as table:
            ratios = [measured(medusaq, table, name) for name in options.only]
            right = sum(LEAST <= ratio <= MOST for ratio in ratios)
            table.note(
                f"ratio: of the middle of what was said after ten rows to what was taken; {right} of "
                f"{len(ratios)} are within {LEAST} to {MOST}."
            )


def measured(medusaq: Medusaq, table: Rows, name: str) -> float:
    shape = SHAPES[name]
    rows = medusaq.written(shape)
    before = medusaq.estimate(rows, shape)
    medusaq.run(rows, shape, "--limit", str(FIRST_ROWS))
    after = medusaq.estimate(rows, shape)
    taken = medusaq.run(rows, shape)
    low, high = (seconds(part) for part in after.split(" to "))
    ratio = math.sqrt(low * high) / taken
    table.row(name, shape.rows, before, after, f"{taken:.0f} s", f"{ratio:.2f}")
    return ratio


class Medusaq:
    """The command in a folder, with a cache of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MEDUSAQ_")}
        self._env = {**clean, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(ROOT)}

    def warm_up(self) -> None:
        """Until the speed of the model is known, and that of one run. Exits if it stays unknown."""
        shape = Shape(64, 6, 32, "Say {{ text }}.")
        rows = self.written(shape)
        for _ in range(WARM_UP_RUNS):
            self.run(rows, shape)
            if self.estimate(rows, shape) != NOT_MEASURED:
                self.run(rows, shape)
                return
        raise SystemExit(f"error: the speed was not measured in {WARM_UP_RUNS} runs")

    def written(self, shape: Shape) -> Path:
        """The table of a shape."""
        drawn, path = random.Random(shape.words), self._folder / "rows.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(["text"])
            table.writerows([" ".join(drawn.choices(WORDS, k=shape.words))] for _ in range(shape.rows))
        return path

    def estimate(self, rows: Path, shape: Shape) -> str:
        """As in "40 to 70 s"."""
        said = self._called(rows, shape, "--dry-run")
        found = re.search(r"^time +(?:about (.+? to .+? s)\b|not known)", said, re.MULTILINE)
        assert found, said
        return found[1] or NOT_MEASURED

    def run(self, rows: Path, shape: Shape, *options: str) -> float:
        """Seconds, without those of starting."""
        said = self._called(rows, shape, "--fresh", "--no-progress", *options)
        found = re.search(r"^wall time .*answering (.+)\)$", said, re.MULTILINE)
        assert found, said
        return seconds(found[1])

    def _called(self, rows: Path, shape: Shape, *options: str) -> str:
        of_shape = ("--template", shape.template, "--max-tokens", str(shape.max_tokens), *shape.options)
        command = [
            sys.executable,
            "-P",
            "-m",
            "cli",
            "run",
            str(rows),
            "-o",
            "answers.csv",
            *of_shape,
            *options,
        ]
        done = subprocess.run(
            command, cwd=self._folder, env=self._env, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode not in (0, 1):  # 1: some answers were cut off
            raise SystemExit(done.stderr)
        return done.stdout


def seconds(told: str) -> float:
    """Of "7.3 s", "1 min 12 s", "3 h 05 min", and of a bare number."""
    parts = re.findall(r"([\d.]+) ?(h|min|s|$)", told)
    return sum(float(number) * {"h": 3600, "min": 60}.get(unit, 1) for number, unit in parts)


if __name__ == "__main__":
    main()
