"""How often the model is right in small tasks: rows with their right answers, through `medusaq run`.

    python -m tests.benchmarks --only small-tasks

The templates were chosen on 30 other rows of each task, which are not kept.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tables.answers.expected_answers import EXPECTED
from tests.benchmarks.common import ToolFailed
from tests.support.measuring.report import Report
from tests.support.workers import ROOT

FEW = "examples in the template"


@dataclass(frozen=True, slots=True)
class Task:
    """options: of `medusaq run`. within: the answer need only contain what is expected."""

    name: str
    table: str
    options: tuple[str, ...]
    how: str
    within: str = ""


def _shots(line: str, form: str, *answers: tuple[str, str], last: str) -> str:
    """A template of answered examples and the row, as lines and JSON."""
    shown = [f"{line.format(asked)}\n{form % answer}\n\n" for asked, answer in answers]
    return "".join([*shown, line.format(last), "\n"])


LANGUAGE = _shots(
    "Sentence: {}",
    '{"language": "%s"}',
    ("Das Brot ist frisch.", "German"),
    ("Il pane è fresco.", "Italian"),
    ("The bread is fresh.", "English"),
    ("El pan está fresco.", "Spanish"),
    ("Le pain est frais.", "French"),
    last="{{ sentence }}",
)
POWERED = _shots(
    "Does a {} need electricity?",
    '{"powered": "%s"}',
    ("fridge", "yes"),
    ("spoon", "no"),
    ("laptop", "yes"),
    ("carpet", "no"),
    last="{{ product }}",
)
TITLE = _shots(
    "Product: {}",
    '{"title": "%s"}',
    ("sledge\nReview: The rope broke and nobody answers my mails.", "A sledge with a broken rope"),
    (
        "amplifier\nReview: The battery lasts for days, and the sound is great.",
        "Great sound from an amplifier",
    ),
    last="{{ product }}\nReview: {{ review }}",
)
TASKS = (
    Task(
        "amount and date of a note",
        "notes",
        ("--template-file", "examples/notes.txt", "--schema", "examples/notes.json"),
        "patterns in the schema",
    ),
    Task(
        "sentiment of a review",
        "reviews",
        ("--template-file", "examples/reviews.txt", "--json", "sentiment:positive|negative", "--raw"),
        f"4 {FEW}",
    ),
    Task(
        "language of a sentence, one of five",
        "sentences",
        ("--template", LANGUAGE, "--json", "language:English|German|French|Spanish|Italian", "--raw"),
        f"5 {FEW}",
    ),
    Task(
        "whether a product needs electricity",
        "reviews",
        ("--template", POWERED, "--json", "powered:yes|no", "--raw"),
        f"4 {FEW}",
    ),
    Task(
        "a title that names the product",
        "reviews",
        ("--template", TITLE, "--json", "title:string", "--raw", "--max-tokens", "64"),
        f"2 {FEW}",
        within="product",
    ),
)


def measure(model: Path, report: Report) -> None:
    """Rows of which all columns are as expected."""
    with report.table("small-tasks", "task", "how", "right", "of") as table:
        for task in TASKS:
            rows = _answered(task, model)
            table.row(task.name, task.how, sum(_right(row, task) for row in rows), len(rows))
        table.note(
            "The rows and their right answers are ours (`examples/`), and so are the 30 others on which the "
            "template of each task was chosen. Greedy decoding; other kernels may round some rows otherwise."
        )


def _answered(task: Task, model: Path) -> list[dict[str, str]]:
    """The rows with their answers. Raises ToolFailed."""
    with tempfile.TemporaryDirectory(prefix="medusaq-bench-") as folder:
        results = Path(folder) / "results.csv"
        command = [sys.executable, "-m", "cli", "run", f"examples/{task.table}.csv", "-o", str(results)]
        done = subprocess.run(
            [*command, *task.options, "--model", str(model), "--no-progress"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ToolFailed(f"{task.name}: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
        with results.open(encoding="utf-8", newline="") as file:
            return [*csv.DictReader(file)]


def _right(row: Mapping[str, str], task: Task) -> bool:
    if task.within:
        return row[task.within].lower() in row["title"].lower()
    wanted = {name.removeprefix(EXPECTED): row[name] for name in row if name.startswith(EXPECTED)}
    return all(row[name] == value for name, value in wanted.items() if name in row)
