"""Builds the images, brings the system up with Compose, does to it what CASES names, and prints two tables.

    python -m tests.containers [--only kill ...] [--previous COMMIT] [--record [FILE]]

Needs Docker Engine 25 or newer with compose; without a registry also mmdebstrap, as root. --record keeps the
tables once all cases have been run and nothing was wrong. Exit code 1 when something was.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from medusaq import MedusaqError
from tests.chaos.judging.table import note
from tests.containers import bases, previous
from tests.containers.cases import CASES, NEEDED, Row, Trial
from tests.containers.docker import DockerFailed, docker
from tests.containers.load import Wrong
from tests.containers.system import NotHealthy, System
from tests.project.deployment.container_files import check, seconds
from tests.support.measuring.report import Report, Rows, add_record, shown_command
from tests.support.workers import ROOT

SERVICES_HEAD = (
    "service",
    "image",
    "healthy after",
    "health check",
    "checks, of a core",
    "at rest, of a core",
)
CASES_HEAD = ("what is done", "submitted", "lost", "doubled", "other answers", "found")
MB = 1e6
FAILURES = (Wrong, NotHealthy, DockerFailed, MedusaqError, httpx.HTTPError, subprocess.TimeoutExpired)


def services(table: Rows, trial: Trial) -> None:
    """Sizes of each service, and times of those that started."""
    for name, size in trial.system.sizes().items():
        row = [name, f"{size / MB:.0f} MB", f"{trial.starts[name]:.0f} s" if name in trial.starts else "-"]
        if name in trial.checks:
            used = trial.checks[name]
            row += [f"{used:.2f} s", f"{used / seconds(check(name)['interval']):.1%}"]
        else:
            row += ["-", "-"]
        row.append(f"{trial.rest[name]:.1%}" if name in trial.rest else "-")
        table.row(*row)


def carried_out(names: list[str], trial: Trial) -> tuple[list[Row], list[str]]:
    """What was found, and the case that went wrong, which is the last."""
    rows: list[Row] = []
    for name in names:
        began = time.monotonic()
        try:
            found = CASES[name](trial)
        except FAILURES as error:
            print(f"{name}: {error}\n{trial.system.tails()}", flush=True)
            return rows, [name]
        for row in found:
            print(f"{row.title}: {row.verdict}; {row.found}", flush=True)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
        rows += found
        if not all(row.verdict.right for row in found):
            print(trial.system.tails(), flush=True)
            return rows, [name]
    return rows, []


def cells(row: Row) -> tuple[str, ...]:
    verdict = row.verdict
    counts = (verdict.submitted, verdict.lost, verdict.doubled, verdict.changed)
    return (row.title, *(str(count) if verdict.submitted else "-" for count in counts), row.found)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=CASES, default=[*CASES], metavar="CASE")
    parser.add_argument("--previous", help="the commit to upgrade from; by default the last release")
    parser.add_argument("--mirror", default=bases.MIRROR, help="of Debian, for stand-ins")
    parser.add_argument("--keep", action="store_true", help="leave the containers as they are at the end")
    add_record(parser)
    options = parser.parse_args()
    report = Report(shown_command("tests.containers", sys.argv[1:]), options.record)
    began = time.monotonic()
    names = [name for name in CASES if name in {*options.only, *NEEDED}]
    with tempfile.TemporaryDirectory(prefix="medusaq-containers-") as folder:
        try:
            engine = docker("version", "--format", "{{.Server.Version}}").strip()
            system = System(ROOT, "new", bases.find(options.mirror), Path(folder))
            system.down("--volumes")
            system.build()
        except DockerFailed as error:
            print(f"error: {error}")
            return 2
        trial = Trial(system, Path(folder), options.previous or previous.revision())
        try:
            rows, wrong = carried_out(names, trial)
        finally:
            if not options.keep:
                system.down("--volumes")
        keep = not wrong and names == [*CASES]
        print()
        with report.table("containers", *SERVICES_HEAD, keep=keep) as table:
            services(table, trial)
            table.note(f"Docker Engine {engine}, {system.bases.told}.")
    skipped = {} if system.bases.monitoring else {"monitoring": "its images cannot be had"}
    with report.table("containers-cases", *CASES_HEAD, keep=keep) as table:
        for row in rows:
            table.row(*cells(row))
        table.note(note((time.monotonic() - began) / 60, skipped))
    if wrong:
        print(f"\nwrong: {', '.join(wrong)}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
