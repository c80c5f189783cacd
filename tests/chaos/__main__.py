"""Runs the cases and prints one table; exit code 1 when anything was lost, doubled or wrong.

    python -m tests.chaos [--only kill-worker ...] [--strikes N] [--minutes M] [--write docs/chaos.md ...]

Each case has a stack of its own, at default settings unless it says otherwise. --write puts the table and the
options that made it, between the lines `<!-- chaos -->` and `<!-- /chaos -->` of a file.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path
from statistics import median

from tests.chaos import processes, soak, surroundings  # noqa: F401  each fills CASES
from tests.chaos.case import CASES, Case
from tests.chaos.run import Outcome, Size, Skipped, running
from tests.chaos.stack import Stack

BEGIN, END = "<!-- chaos -->", "<!-- /chaos -->"
ORDER = sorted(CASES, key=lambda name: name == "soak")  # which takes longest
OFTEN = {"kill-worker": 4, "kill-worker-fast": 4, "rolling": 2}  # strikes, for each of the other cases
HEAD = ("case", "strikes", "submitted", "webhooks", "lost", "doubled", "recovery p50", "max")


def row(case: Case, outcome: Outcome) -> tuple[str, ...]:
    times = outcome.recoveries_s
    shown = (f"{median(times):.1f} s", f"{max(times):.1f} s") if times else ("-", "-")
    tally = outcome.tally
    counts = (outcome.faults, tally.submitted, tally.webhooks, tally.lost, tally.doubled)
    return (case.title, *(f"{count:,}" for count in counts), *shown)


def table(rows: list[tuple[str, ...]]) -> str:
    """As markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (HEAD, ("---",) * len(HEAD), *rows))


def write(path: Path, made: str) -> None:
    """Raises ValueError for a file without the two lines."""
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    path.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", encoding="utf-8")


def carry_out(case: Case, size: Size, seed: int) -> Outcome:
    """On a stack of its own, whose logs are shown if anything is wrong."""
    with tempfile.TemporaryDirectory(prefix="medusaq-chaos-") as folder:
        with Stack(Path(folder), case.needs, **case.profile) as stack:
            with running(stack, size, seed) as run:
                case.act(run)
                outcome = run.outcome()
            if outcome.tally.troubles:
                print(stack.tails())
        return outcome


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=CASES, default=ORDER, metavar="CASE")
    parser.add_argument("--strikes", type=int, default=1, help="how often each fault is put in")
    parser.add_argument("--minutes", type=float, default=10.0, help="of the soak")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the soak's faults")
    parser.add_argument("--write", nargs="*", type=Path, default=[], help="files that hold the table")
    options = parser.parse_args()
    size = Size(
        strikes=options.strikes,
        jobs_per_s=5.0,
        lines=200,
        delay_s=0.3,
        long_s=30.0,
        outage_s=12.0,
        large=20_000,
        minutes=options.minutes,
    )
    print(f"seed {options.seed}")
    rows, failed, began = [], False, time.monotonic()
    for case in (CASES[name] for name in options.only):
        case_began = time.monotonic()
        try:
            often = replace(size, strikes=size.strikes * OFTEN.get(case.name, 1))
            outcome = carry_out(case, often, options.seed)
        except Skipped as reason:
            print(f"{case.name}: left out: {reason}", flush=True)
            continue
        except Exception:  # the others are worth knowing all the same
            print(f"{case.name}: broke off", flush=True)
            traceback.print_exc()
            failed = True
            continue
        took_s = time.monotonic() - case_began
        rows.append(row(case, outcome))
        failed = failed or outcome.tally.troubles != [] or outcome.tally.lost + outcome.tally.doubled > 0
        notes = "; ".join((*outcome.notes, f"{took_s:.0f} s in all"))
        print(f"{case.name}: {', '.join(rows[-1][1:])}; {notes}", flush=True)
        for trouble in outcome.tally.troubles:
            print(f"  {trouble}", flush=True)
    took = f"{(time.monotonic() - began) / 60:.0f} minutes on {os.cpu_count()} cores"
    given = f"--strikes {options.strikes} --minutes {options.minutes:g} --seed {options.seed}"
    made = f"{table(rows)}\n\n{took}, `{given}`."
    print(f"\n{made}")
    for path in options.write:
        write(path, made)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
