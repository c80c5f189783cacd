"""`make release`: builds, looks into the archives, tries every extra, pipx and uv on every Python named."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.release.archives import build
from tests.release.contents import needed_by, problems, project
from tests.release.environments import TOOLS, Environment, Result, Trial, attempt
from tests.support.measuring.report import Report, add_record, shown_command
from tests.support.medusaq_up import Failed

BASE = "base"
OF_CLONES = "dev"  # for `make test`, which installs it
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
TORCH = "torch"
FAILED = "failed"
HEAD = ("Python", "extra, or tool", "packages", "installed in", "`medusaq up` ready in", "said")
Row = tuple[str, ...]


def main() -> int:
    options = _arguments()
    version = project()["version"]
    # Before all trials: it names the commit that is built.
    report = Report(shown_command("tests.release", sys.argv[1:]), options.record)
    with tempfile.TemporaryDirectory(prefix="medusaq-release-") as temporary:
        folder = options.keep or Path(temporary)
        archives = build(folder)
        found = problems(archives)
        print(*(f"error: {problem}" for problem in found), sep="\n", end="\n" if found else "")
        failures = len(found)
        rows = []
        for python in options.python or [Path(sys.executable)]:
            for row in _on(python, options.extra or _extras(), archives.wheel, version, folder):
                print(f"| {' | '.join(row)} |", flush=True)
                failures += FAILED in row
                rows.append(row)
        sizes = [
            f"{path.name} has {path.stat().st_size / 1e6:.1f} MB"
            for path in (archives.source, archives.wheel)
        ]
    print()
    with report.table("release", *HEAD, keep=not failures and not options.extra) as table:
        for row in rows:
            table.row(*row)
        table.note(f"{', '.join(sizes)}.")
    print(f"{failures} failed" if failures else "all passed")
    return 1 if failures else 0


def _on(python: Path, extras: list[str], wheel: Path, version: str, folder: Path) -> Iterator[Row]:
    """Try the extras on one Python, a row each."""
    name = _version_of(python)
    heavy: str | None = None
    for extra in extras:
        if TORCH in needed_by(extra):
            heavy = _heavy(python) if heavy is None else heavy
            if heavy:
                yield name, extra, "-", "-", "-", f"skipped: {heavy}"
                continue
        tool = extra if extra in TOOLS else ""
        trial = Trial(python, "" if tool or extra == BASE else extra, tool)
        environment = Environment(folder / f"{name}-{extra}", folder / "cache")
        try:
            yield _row(name, extra, attempt(trial, wheel, version, environment))
            environment.remove()  # 600 MB and more
        except Failed as error:
            yield name, extra, "-", "-", "-", FAILED
            print(f"error: {error}", flush=True)


def _row(name: str, extra: str, result: Result) -> Row:
    up = "-" if result.up_s is None else f"{result.up_s:.0f} s"
    return (name, extra, str(result.packages), f"{result.install_s:.0f} s", up, result.answer)


def _heavy(python: Path) -> str:
    """Why torch is not installed: with CUDA it has gigabytes. Empty if pip finds the one for processors."""
    [wanted] = [line for line in project()["optional-dependencies"]["train"] if line.startswith(TORCH)]
    with tempfile.TemporaryDirectory() as folder:
        venv = Path(folder) / "env"
        subprocess.run([str(python), "-m", "venv", str(venv)], check=True)
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "--dry-run"]
        done = subprocess.run([*pip, "--report", "-", wanted], capture_output=True, text=True)
    if done.returncode:
        return f"pip finds no {wanted}"
    [found] = [each["metadata"]["version"] for each in json.loads(done.stdout)["install"]]
    if sys.platform != "linux" or found.endswith("+cpu"):
        return ""
    return f"{TORCH} {found} of this index brings CUDA; set PIP_EXTRA_INDEX_URL={CPU_INDEX}"


def _extras() -> list[str]:
    return [BASE, *(name for name in project()["optional-dependencies"] if name != OF_CLONES), *TOOLS]


def _version_of(python: Path) -> str:
    command = [str(python), "-c", "import platform; print(platform.python_version())"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=__doc__)
    parser.add_argument("--python", type=Path, nargs="+", help="interpreters (default: this one)")
    parser.add_argument("--extra", nargs="+", choices=_extras(), help="only these")
    parser.add_argument(
        "--keep", type=Path, help="a new folder for the archives, the logs, and environments that failed"
    )
    add_record(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
