"""Runs the cases and prints one table; exit code 1 when anything was lost, doubled, wrong or too slow.

    python -m tests.chaos [--only kill-worker ...] [--strikes N] [--minutes M] [--record [FILE]]

Each case has a stack of its own, at default settings unless it says otherwise. --record keeps
the table once all cases have been run and nothing was wrong: the documents show the last whole one.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.chaos.cases import processes, soak, surroundings, windows  # noqa: F401  each fills CASES
from tests.chaos.cases.case import CASES, Case
from tests.chaos.judging.table import HEAD, NAME, note, row
from tests.chaos.run import Outcome, Size, Skipped, running
from tests.chaos.stack import Stack
from tests.support.measuring import report as recorded
from tests.support.measuring.report import SCRIPTED_ENGINE, add_record

ORDER = sorted(CASES, key=lambda name: name == "soak")  # which takes longest
OFTEN = {"kill-worker": 4, "kill-worker-fast": 4, "rolling": 2}  # strikes, for each of the other cases


@dataclass
class Report:
    """What has come of the cases. skipped: case -> why."""

    rows: list[tuple[str, ...]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def unfit(self, asked: Iterable[str]) -> str:
        """Why no table may be written; empty if it may. asked: the cases that were to be run."""
        if self.failed:
            return f"failed: {', '.join(self.failed)}"
        if missing := [name for name in ORDER if name not in set(asked)]:
            return f"not all cases were run: without {', '.join(missing)}"
        return ""


def too_slow(case: Case, outcome: Outcome) -> list[str]:
    """That a recovery took longer than the case allows."""
    longest = max(outcome.recoveries_s, default=0.0)
    if case.limit_s is None or longest <= case.limit_s:
        return []
    return [f"recovered after {longest:.1f} s, not within {case.limit_s:g} s"]


def carry_out(case: Case, size: Size, seed: int) -> Outcome:
    """On a stack of its own, whose logs are shown if anything is wrong."""
    with tempfile.TemporaryDirectory(prefix="medusaq-chaos-") as folder:
        with Stack(Path(folder), case.needs, lanes=True, **case.profile) as stack:
            if case.limit_s is not None:  # no killed worker is missed so soon after a start
                time.sleep(stack.settings.lease_ms / 1000)
            with running(stack, size, seed) as run:
                case.act(run)
                outcome = run.outcome()
            outcome.tally.troubles += too_slow(case, outcome)
            if outcome.tally.troubles:
                print(stack.tails())
        return outcome


def carry_out_all(names: Iterable[str], size: Size, seed: int) -> Report:
    """One after the other; what is wrong with one does not keep the others from being run."""
    report = Report()
    for case in (CASES[name] for name in names):
        began = time.monotonic()
        try:
            often = replace(size, strikes=size.strikes * OFTEN.get(case.name, 1))
            outcome = carry_out(case, often, seed)
        except Skipped as reason:
            report.skipped[case.name] = str(reason)
            print(f"{case.name}: left out: {reason}", flush=True)
            continue
        except Exception:
            report.failed.append(case.name)
            print(f"{case.name}: broke off", flush=True)
            traceback.print_exc()
            continue
        tally = outcome.tally
        report.rows.append(row(case, outcome))
        if tally.troubles or tally.lost or tally.doubled:
            report.failed.append(case.name)
        notes = "; ".join((*outcome.notes, f"{time.monotonic() - began:.0f} s in all"))
        print(f"{case.name}: {', '.join(report.rows[-1][1:])}; {notes}", flush=True)
        for trouble in tally.troubles:
            print(f"  {trouble}", flush=True)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=CASES, default=ORDER, metavar="CASE")
    parser.add_argument("--strikes", type=int, default=1, help="how often each fault is put in")
    parser.add_argument("--minutes", type=float, default=10.0, help="of the soak's faults")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the soak's faults")
    add_record(parser)
    options = parser.parse_args()
    size = Size(
        strikes=options.strikes,
        jobs_per_s=5.0,
        lines=200,
        delay_s=0.3,
        outage_s=12.0,
        large=20_000,
        minutes=options.minutes,
    )
    print(f"seed {options.seed}")
    given = f"--strikes {options.strikes} --minutes {options.minutes:g} --seed {options.seed}"
    told = recorded.Report(f"python -m tests.chaos {given}", options.record, SCRIPTED_ENGINE)
    began = time.monotonic()
    report = carry_out_all(options.only, size, options.seed)
    minutes = (time.monotonic() - began) / 60
    if unfit := report.unfit(options.only):
        print(f"\nnot recorded, {unfit}")
    with told.table(NAME, *HEAD, keep=not unfit) as table:
        for cells in report.rows:
            table.row(*cells)
        table.note(note(minutes, report.skipped))
    return int(bool(report.failed))


if __name__ == "__main__":
    sys.exit(main())
