"""The table of what became of the work."""

from __future__ import annotations

from statistics import median

from tests.chaos.cases.case import Case
from tests.chaos.run import Outcome

NAME = "chaos"
HEAD = ("case", "strikes", "submitted", "webhooks", "lost", "doubled", "recovery p50", "max")


def row(case: Case, outcome: Outcome) -> tuple[str, ...]:
    times = outcome.recoveries_s
    shown = (f"{median(times):.1f} s", f"{max(times):.1f} s") if times else ("-", "-")
    tally = outcome.tally
    counts = (outcome.faults, tally.submitted, tally.webhooks, tally.lost, tally.doubled)
    return (case.title, *(f"{count:,}" for count in counts), *shown)


def note(minutes: float, skipped: dict[str, str]) -> str:
    """What is said below the table. skipped: case -> why it was left out."""
    left_out = ", ".join(f"`{name}` ({why})" for name, why in skipped.items())
    return f"{minutes:.0f} minutes." + (f" Left out: {left_out}." if skipped else "")
