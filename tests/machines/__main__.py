"""Runs the cases on hosts of network namespaces and prints one table; exit code 1 when anything was lost,
doubled or wrong, 2 where this machine makes no such hosts.

    python -m tests.machines [--only redis-cut ...] [--lines N] [--record [FILE]]

Needs root, iproute2, util-linux and haproxy; a server of S3 is installed from the package index. --record
keeps the table once all cases have been run and nothing was wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from pathlib import Path

from tests.chaos.judging.table import note
from tests.chaos.run import Size, running
from tests.machines.cases import CASES, Result, carry_out
from tests.machines.fleet import SLOTS, serving
from tests.machines.manifests import check
from tests.machines.network import OURS, CannotConnect, Network
from tests.machines.programs import CannotServe, Programs
from tests.support.environments import CannotInstall
from tests.support.measuring.report import SCRIPTED_ENGINE, Report, add_record

NAME = "machines"
HEAD = ("what fails", "submitted", "lost", "doubled", "recovery", "batch")
LINES = 20_000
LINES_PER_S = 200  # of each worker, as on a GPU
SIZE = Size(
    strikes=1,
    jobs_per_s=5.0,
    lines=0,
    delay_s=SLOTS / LINES_PER_S,
    outage_s=0.0,
    large=0,
    minutes=0.0,
)


def row(result: Result) -> tuple[str, ...]:
    tally, recoveries = result.outcome.tally, result.outcome.recoveries_s
    recovery = f"{max(recoveries):.1f} s" if recoveries else "-"
    counts = (tally.submitted, tally.lost, tally.doubled)
    return (result.case.title, *(f"{count:,}" for count in counts), recovery, f"{result.batch_s} s")


def run_all(names: Iterable[str], lines: int, programs: Programs, network: Network) -> dict[str, Result]:
    """What broke off is left out of what it returns. One fleet for the cases of a kind."""
    results: dict[str, Result] = {}
    for replicated in (False, True):
        of_kind = [name for name in names if CASES[name].replicated == replicated]
        if not of_kind:
            continue
        with (
            tempfile.TemporaryDirectory(prefix="medusaq-machines-") as folder,
            serving(Path(folder), network, programs, replicated) as fleet,
        ):
            for name in of_kind:
                try:
                    with running(fleet, SIZE, host=OURS) as trial:
                        result = results[name] = carry_out(CASES[name], trial, lines)
                except Exception:
                    print(f"{name}: broke off\n{fleet.tails()}", flush=True)
                    traceback.print_exc()
                    break  # the hosts may not be as they were
                print(f"{name}: {', '.join(row(result)[1:])}; {result.host or 'no host'}", flush=True)
                for trouble in result.outcome.tally.troubles:
                    print(f"  {trouble}", flush=True)
                if result.failed:
                    print(fleet.tails(), flush=True)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=CASES, default=[*CASES], metavar="CASE")
    parser.add_argument("--lines", type=int, default=LINES, help="of the batch of each case")
    add_record(parser)
    options = parser.parse_args()
    command = f"python -m tests.machines --lines {options.lines}"
    report, began = Report(command, options.record, SCRIPTED_ENGINE), time.monotonic()
    try:
        programs = Programs.found()
        network = Network()
    except (CannotServe, CannotInstall, CannotConnect) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    manifests = check(programs.kubectl)
    results = run_all(options.only, options.lines, programs, network)
    minutes = (time.monotonic() - began) / 60
    wrong = [name for name in options.only if name not in results or results[name].failed]
    if wrong:
        print(f"\nwrong: {', '.join(wrong)}")
    with report.table(NAME, *HEAD, keep=not wrong and results.keys() == CASES.keys()) as table:
        for result in results.values():
            table.row(*row(result))
        table.note(f"{note(minutes, {})} Manifests: {'; '.join(manifests)}.")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
