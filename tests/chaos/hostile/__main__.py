"""Measures an honest key's requests alone and beside each hostile behaviour.

Exit code 1 when one was wrong, or when the p95 of jobs beside one behaviour was more than twice that alone.
Excepted from the latter are jobs that fill all slots, and all behaviours at once, which fill both cores.

    python -m tests.chaos.hostile [--only flood ...] [--pairs N] [--seconds S] [--record [FILE]]

Each behaviour has a stack of its own at default settings, with the scripted engine. Phases alone and beside
take turns; of each phase's figures the median is shown. --record keeps the table once all behaviours were
measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.hostile.behaviours import ALL, BEHAVIOURS
from tests.chaos.hostile.beside import LARGEST_RATIO, MAIN, Bench
from tests.chaos.hostile.table import HEAD, NAME, row
from tests.chaos.stack import Stack
from tests.support.measuring.report import SCRIPTED_ENGINE, Report, add_record
from tests.support.peers.receivers import receiving

RECEIVER = "127.9.9.9"  # of the honest key's webhooks: none of the hosts of hostile ones
SHOWN = 5  # troubles of each behaviour


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=BEHAVIOURS, default=[*BEHAVIOURS], metavar="BEHAVIOUR")
    parser.add_argument("--pairs", type=int, default=3, help="phases alone and beside, for each behaviour")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a phase")
    add_record(parser)
    options = parser.parse_args()
    command = f"python -m tests.chaos.hostile --pairs {options.pairs} --seconds {options.seconds:g}"
    report = Report(command, options.record, SCRIPTED_ENGINE)
    began, rows, wrong = time.monotonic(), [], False
    for name in options.only:
        with (
            tempfile.TemporaryDirectory(prefix="medusaq-hostile-") as folder,
            Stack(Path(folder)) as stack,
            receiving(host=RECEIVER) as receiver,
        ):
            found = Bench(stack, receiver).pairs(name, options.pairs, options.seconds)
        rows.append(row(BEHAVIOURS[name].title, found))
        print(f"{name}: {', '.join(rows[-1][1:])}", flush=True)
        for trouble in found.troubles[:SHOWN]:
            print(f"  {trouble}", flush=True)
        wrong |= bool(found.troubles)
        excepted = name == ALL or BEHAVIOURS[name].fills_slots
        if not excepted and found.ratio(MAIN) > LARGEST_RATIO:
            print(f"  the p95 of jobs is {found.ratio(MAIN):.1f} times that alone", flush=True)
            wrong = True
    whole = len(rows) == len(BEHAVIOURS)
    if options.record and not whole:
        print("\nnot recorded: not all behaviours were measured")
    with report.table(NAME, *HEAD, keep=whole) as table:
        for cells in rows:
            table.row(*cells)
        table.note(f"{(time.monotonic() - began) / 60:.0f} minutes.")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
