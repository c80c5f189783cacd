"""Builds the images, brings the system up with Compose, does to it what CASES names, and prints two tables.

    python -m tests.containers [--only kill ...] [--previous COMMIT] [--write FILE]

Needs Docker Engine 25 or newer with compose; without a registry also mmdebstrap, as root. --write puts the
tables between the lines `<!-- containers -->` and `<!-- /containers -->` of a file, once all cases have been
run and nothing was wrong. Exit code 1 when something was.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from medusaq import MedusaqError
from tests.chaos.judging.table import footer, table, write
from tests.containers import bases, previous
from tests.containers.cases import CASES, NEEDED, Row, Trial
from tests.containers.docker import DockerFailed, docker
from tests.containers.load import Wrong
from tests.containers.system import NotHealthy, System
from tests.project.deployment.container_files import check, seconds
from tests.support.measuring.machine import commit, processor
from tests.support.workers import ROOT

BEGIN, END = "<!-- containers -->", "<!-- /containers -->"
SERVICES_HEAD = ("service", "image", "healthy after", "health check", "of a core, at rest")
CASES_HEAD = ("what is done", "submitted", "lost", "doubled", "other answers", "found")
MB = 1e6


def services(trial: Trial) -> str:
    """Sizes and times of each service, as markdown."""
    rows = []
    for name, size in trial.system.sizes().items():
        row = [name, f"{size / MB:.0f} MB", f"{trial.starts[name]:.0f} s"]
        if name in trial.checks:
            used = trial.checks[name]
            row += [f"{used:.2f} s", f"{used / seconds(check(name)['interval']):.1%}"]
        else:
            row += ["-", "-"]
        rows.append(tuple(row))
    return table(rows, SERVICES_HEAD)


def carried_out(names: list[str], trial: Trial) -> tuple[list[Row], list[str]]:
    """What was found, and the case that went wrong, which is the last."""
    rows: list[Row] = []
    for name in names:
        began = time.monotonic()
        try:
            found = CASES[name](trial)
        except (Wrong, NotHealthy, DockerFailed, MedusaqError) as error:
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
    parser.add_argument("--write", type=Path, help="a file that holds the tables")
    options = parser.parse_args()
    code, began = commit(), time.monotonic()
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
        made = services(trial)
    skipped = {} if system.bases.monitoring else {"monitoring": "its images cannot be had"}
    made += f"\n\n{table([cells(row) for row in rows], CASES_HEAD)}\n\n"
    machine = f"{os.cpu_count()} cores of {processor()}, Docker Engine {engine}, {system.bases.told}"
    made += footer((time.monotonic() - began) / 60, machine, " ".join(sys.argv[1:]) or "make", code, skipped)
    print(f"\n{made}")
    if wrong:
        print(f"\nwrong: {', '.join(wrong)}")
    elif options.write is not None and names == [*CASES]:
        write(options.write, made, BEGIN, END)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
