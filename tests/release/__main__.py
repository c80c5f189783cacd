"""`make release`: builds, looks into the archives, tries every extra, pipx and uv on every Python named."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.release.archives import build
from tests.release.contents import needed_by, problems, project
from tests.release.environments import TOOLS, Environment, Result, Trial, attempt
from tests.support.measuring.sigterm import clean_up_on_sigterm
from tests.support.medusaq_up import Failed

BASE = "base"
OF_CLONES = "dev"  # for `make test`, which installs it
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
TORCH = "torch"
FAILED, SKIPPED = "failed", "skipped: "
HEAD = ("Python", "extra, or tool", "packages", "installed in", "`medusaq up` ready in", "said")
Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Python:
    path: Path
    version: str


def main() -> int:
    options = _arguments()
    clean_up_on_sigterm()
    version = project()["version"]
    with tempfile.TemporaryDirectory(prefix="medusaq-release-") as temporary:
        folder = (options.keep or Path(temporary)).absolute()
        archives = build(folder)
        found = problems(archives)
        print(*(f"error: {problem}" for problem in found), sep="\n", end="\n" if found else "")
        failures, skipped = len(found), 0
        print(f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|", flush=True)
        for python in options.python:
            for row in _on(python, options.extra or _extras(), archives.wheel, version, folder):
                print(f"| {' | '.join(row)} |", flush=True)
                failures += FAILED in row
                skipped += SKIPPED in row[-1]
        sizes = [
            f"{path.name} has {path.stat().st_size / 1e6:.1f} MB"
            for path in (archives.source, archives.wheel)
        ]
    print(f"\n{', '.join(sizes)}")
    counts = ((failures, "failed"), (skipped, "skipped"))
    print(", ".join(f"{count} {what}" for count, what in counts if count) or "all passed")
    return 1 if failures else 0


def _on(python: Python, extras: list[str], wheel: Path, version: str, folder: Path) -> Iterator[Row]:
    """Try the extras on one Python, a row each."""
    name = python.version
    heavy: str | None = None
    for extra in extras:
        tool = extra if extra in TOOLS else ""
        trial = Trial(python.path, "" if tool or extra == BASE else extra, tool)
        environment = Environment(folder / f"{name}-{extra}", folder / "cache")
        try:
            if TORCH in needed_by(extra):
                heavy = _heavy(python.path) if heavy is None else heavy
                if heavy:
                    yield name, extra, "-", "-", "-", f"{SKIPPED}{heavy}"
                    continue
            yield _row(name, extra, attempt(trial, wheel, version, environment))
            environment.remove()  # 600 MB and more
        except (Failed, OSError, ValueError, subprocess.SubprocessError) as error:
            yield name, extra, "-", "-", "-", FAILED
            print(f"error: {error}", flush=True)


def _row(name: str, extra: str, result: Result) -> Row:
    up = "-" if result.up_s is None else f"{result.up_s:.0f} s"
    return (name, extra, str(result.packages), f"{result.install_s:.0f} s", up, result.answer)


def _heavy(python: Path) -> str:
    """Why torch is not installed: with CUDA it has gigabytes. Empty if pip finds another, or none."""
    [wanted] = [line for line in project()["optional-dependencies"]["train"] if line.startswith(TORCH)]
    with tempfile.TemporaryDirectory() as folder:
        venv = Path(folder) / "env"
        subprocess.run([str(python), "-m", "venv", str(venv)], check=True)
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--upgrade", "pip"], check=True)  # earlier ones fetch it for a dry run
        dry = [*pip, "--no-deps", "--dry-run", "--report", "-", wanted]
        done = subprocess.run(dry, capture_output=True, text=True)
    if done.returncode:
        return ""
    [found] = [each["metadata"]["version"] for each in json.loads(done.stdout)["install"]]
    if sys.platform != "linux" or found.endswith("+cpu"):
        return ""
    return f"{TORCH} {found} of this index brings CUDA; set PIP_EXTRA_INDEX_URL={CPU_INDEX}"


def _extras() -> list[str]:
    return [BASE, *(name for name in project()["optional-dependencies"] if name != OF_CLONES), *TOOLS]


def _python(name: str) -> Python:
    """For argparse. Not what links lead to: the interpreter of an environment would lose it."""
    path = Path(shutil.which(name) or name).absolute()
    command = [str(path), "-c", "import platform; print(platform.python_version())"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise argparse.ArgumentTypeError(f"{name}: does not run: {error}") from None
    return Python(path, done.stdout.strip())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=__doc__)
    parser.add_argument("--python", type=_python, nargs="+", help="interpreters (default: this one)")
    parser.add_argument("--extra", nargs="+", choices=_extras(), help="only these")
    parser.add_argument(
        "--keep", type=Path, help="a new folder for the archives, the logs, and environments that failed"
    )
    options = parser.parse_args()
    options.python = options.python or [_python(sys.executable)]
    versions = [python.version for python in options.python]
    if len({*versions}) < len(versions):
        parser.error("--python: two interpreters have the same version")
    return options


if __name__ == "__main__":
    sys.exit(main())
