"""A plugin of pytest that writes each outcome as it ends, so that a stopped run has told its part.

python -m pytest -p tests.gpu.recorder --outcomes FILE
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

PASSED, DIFFERS, SKIPPED = "passed", "differs", "skipped"
MOST_CHARACTERS = 200  # of what a failed assertion says


@dataclass(frozen=True, slots=True)
class Outcome:
    """how: what a failed test says of itself, or why one was skipped."""

    name: str
    outcome: str
    how: str = ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, help="file for a line of JSON a test")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Recorder(config.getoption("--outcomes")))


class _Recorder:
    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._write({"count": len(session.items)})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != PASSED:  # what fails or skips in a fixture has no call
            name = report.nodeid.rpartition("/")[2]
            outcome = DIFFERS if report.failed else report.outcome
            self._write(asdict(Outcome(name, outcome, _how(report))))

    def _write(self, content: dict[str, object]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(content) + "\n")


def _how(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):  # of a skipped test: file, line, reason
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    said = crash.message if crash else str(report.longrepr or "")
    # numpy says below what it compares by how much it differs
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    apart = [line for line in lines if line.startswith(("Mismatched", "Max absolute"))]
    return "; ".join(lines[:1] + apart)[:MOST_CHARACTERS]


def read(path: Path) -> tuple[int, list[Outcome]]:
    """How many tests there are, and what came of those that ended."""
    count, outcomes = 0, dict[str, Outcome]()
    for line in _lines(path):
        content = json.loads(line)
        if "count" in content:
            count = content["count"]
        else:
            outcome = Outcome(**content)
            outcomes.setdefault(outcome.name, outcome)  # a failed fixture's end comes after the test's
    return count, list(outcomes.values())


def _lines(path: Path) -> Iterable[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else ()
