"""The page of results: where it was made, and a row for each item."""

from __future__ import annotations

import platform
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date

import llama_cpp

from common.processor import processor
from engine.llama.devices import devices
from tests.gpu.recorder import DIFFERS, PASSED, SKIPPED, Outcome
from tests.support.measuring.revision import commit

DRIVERS = (
    (["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], r"(\S+)", "NVIDIA {}"),
    (["vulkaninfo", "--summary"], r"driverInfo\s*=\s*(.+)", "{}"),
    (["sw_vers", "-productVersion"], r"(\S+)", "macOS {}"),
)
MOST_NAMED = 4  # of the tests that differ in one way


@dataclass(frozen=True, slots=True)
class Result:
    """What came of an item. not_run: what was not, and why; empty if all was. lines: measured."""

    what: str
    outcomes: Sequence[Outcome] = ()
    lines: Sequence[str] = ()
    not_run: str = ""
    seconds: float = 0.0

    @property
    def differs(self) -> bool:
        return any(outcome.outcome == DIFFERS for outcome in self.outcomes)

    @property
    def summary(self) -> str:
        count = Counter(outcome.outcome for outcome in self.outcomes)
        parts = [f"{count[each]} {each}" for each in (PASSED, DIFFERS, SKIPPED) if count[each]]
        parts += ["measured"] if self.lines else []
        return "; ".join([*parts, *([f"not run: {self.not_run}"] if self.not_run else [])])

    @property
    def details(self) -> list[str]:
        """A line for each way in which tests differ or were skipped, and all that was measured."""
        ways: dict[tuple[str, str], list[str]] = {}
        for outcome in self.outcomes:
            if outcome.outcome != PASSED:
                ways.setdefault((outcome.outcome, outcome.how), []).append(outcome.name)
        return [
            *(f"{way}: {_some(names)}: {how}" for (way, how), names in ways.items()),
            *self.lines,
        ]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name.rpartition('::')[2]}`" for name in names[:MOST_NAMED])
    more = len(names) - MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def place() -> dict[str, str]:
    """Where this page is made: what it says, by what it is."""
    found = devices()
    backends = sorted({re.sub(r"\d+$", "", device.name) for device in found})
    features = llama_cpp.llama_print_system_info().decode().strip(" |")
    return {
        "device": "; ".join(f"{device}, {device.total / 1e9:.1f} GB" for device in found) or "none",
        "backend": ", ".join(backends) or "the processor alone",
        "driver": _driver() or "unknown",
        "machine": f"{processor()}, {platform.platform()}",
        "llama-cpp-python": f"{llama_cpp.__version__}, {features}",
        "commit": f"{commit()}, {date.today()}",
    }


def _driver() -> str:
    for command, pattern, told in DRIVERS:
        try:
            output = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
        except (OSError, subprocess.TimeoutExpired):
            continue
        if found := re.search(pattern, output):
            return told.format(found[1].strip())
    return ""


def page(place: dict[str, str], results: Iterable[Result]) -> str:
    """Markdown."""
    results = [*results]
    rows = [
        "| where | |",
        "|---|---|",
        *(f"| {name} | {_cell(what)} |" for name, what in place.items()),
        "",
        "| what | result |",
        "|---|---|",
        *(f"| {_cell(result.what)} | {_cell(result.summary)} |" for result in results),
    ]
    for result in results:
        if result.details:
            rows += ["", f"{result.what}:", "", *(f"- {line}" for line in result.details)]
    return "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "/")
