"""The table of what became of the work, and where such tables are kept."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from tests.chaos.cases.case import Case
from tests.chaos.run import Outcome

BEGIN, END = "<!-- chaos -->", "<!-- /chaos -->"
HEAD = ("case", "strikes", "submitted", "webhooks", "lost", "doubled", "recovery p50", "max")


def row(case: Case, outcome: Outcome) -> tuple[str, ...]:
    times = outcome.recoveries_s
    shown = (f"{median(times):.1f} s", f"{max(times):.1f} s") if times else ("-", "-")
    tally = outcome.tally
    counts = (outcome.faults, tally.submitted, tally.webhooks, tally.lost, tally.doubled)
    return (case.title, *(f"{count:,}" for count in counts), *shown)


def table(rows: list[tuple[str, ...]], head: tuple[str, ...] = HEAD) -> str:
    """As markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *rows))


def footer(minutes: float, machine: str, options: str, code: str, skipped: dict[str, str]) -> str:
    """What made the table. skipped: case -> why it was left out."""
    parts = [f"{minutes:.0f} minutes on {machine}", f"`{options}`"]
    parts += [f"commit {code}"] if code else []
    left_out = [f"Left out: {', '.join(f'`{name}` ({why})' for name, why in skipped.items())}."]
    return " ".join([f"{', '.join(parts)}.", *(left_out if skipped else [])])


def write(path: Path, made: str, begin: str = BEGIN, end: str = END) -> None:
    """Raises ValueError for a file without the two lines."""
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(begin)
    _, after = rest.split(end)
    path.write_text(f"{before}{begin}\n{made}\n{end}{after}", encoding="utf-8")
