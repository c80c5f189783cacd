"""Runs an item in a process of its own: one that crashes or hangs ends no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path

from tests.gpu.items import MEASURED, Item, Measure, Selection
from tests.gpu.page import Result
from tests.gpu.recorder import DIFFERS, Outcome, read
from tests.support.workers import ROOT

PYTEST = ["-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-q", "--timeout=0"]
TESTS_RAN = (0, 1)  # exit codes of pytest: all passed, some failed
NO_TESTS = 5  # the exit code of pytest when none was selected
FAULT = "Fatal Python error"  # from here on Python says where it was, and names its libraries
MOST_SAID = 300  # characters of what a process said last


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that ended, or was stopped after the limit: then its code is None."""

    code: int | None
    lines: Sequence[str]
    seconds: float

    def why(self) -> str:
        """Why it did not do all that it was to do."""
        if self.code is None:
            return f"not within {self.seconds:.0f} s"
        how = signal.Signals(-self.code).name if self.code < 0 else f"exit code {self.code}"
        said = [*takewhile(lambda line: FAULT not in line, self.lines)]
        return f"{how}: {said[-1][-MOST_SAID:] if said else 'nothing was said'}"


def run(name: str, item: Item, limit_s: float) -> Result:
    if isinstance(item, Measure):
        return run_measure(name, item.what, limit_s)
    with tempfile.TemporaryDirectory() as folder:
        return run_selection(item, limit_s, Path(folder) / "outcomes")


def run_selection(item: Selection, limit_s: float, file: Path) -> Result:
    selected = ["-k", item.select] if item.select else []
    ended = run_process(
        [*PYTEST, "-p", "tests.gpu.recorder", "--outcomes", str(file), *selected, *item.paths], limit_s
    )
    count, outcomes = read(file)
    left = count - len(outcomes)
    if ended.code in TESTS_RAN:
        return Result(item.what, outcomes, seconds=ended.seconds)
    if ended.code is not None and ended.code != NO_TESTS:  # the process died, in the test after the last one
        last = outcomes[-1].name if outcomes else "the start"
        outcomes = [*outcomes, Outcome(f"after {last}", DIFFERS, ended.why())]
    return Result(item.what, outcomes, (), f"{left} tests: {ended.why()}", ended.seconds)


def run_measure(name: str, what: str, limit_s: float) -> Result:
    ended = run_process(["-m", "tests.gpu.measures", name], limit_s)
    lines = [line.removeprefix(MEASURED) for line in ended.lines if line.startswith(MEASURED)]
    why = "" if ended.code == 0 else ended.why()
    died = [Outcome("the measurement", DIFFERS, why)] if ended.code else []
    return Result(what, died, lines, why, ended.seconds)


def run_process(
    arguments: Sequence[str], limit_s: float | None = None, environment: Mapping[str, str] | None = None
) -> Ended:
    """environment: added to that of this process. Without a limit it stays in the session of this process."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "GGML_NO_BACKTRACE": "1", **(environment or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=limit_s is not None,  # its own processes end with it; else it ends with ours
        )
        code: int | None = None
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:
                (process.kill if limit_s is None else partial(os.killpg, process.pid, signal.SIGKILL))()
                process.wait()
        output.seek(0)
        lines = [line.strip() for line in output if line.strip()]
    return Ended(code, lines, time.monotonic() - began)
