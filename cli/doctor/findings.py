"""The result of a check: one line, and one that says how to fix the problem."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum


class Grade(StrEnum):
    OK = "ok"
    WARN = "warn"  # it works, but not as well or as safely as it could
    FAIL = "fail"  # something will not work, or work will be lost


@dataclass(frozen=True, slots=True)
class Finding:
    """check: name of the check. what: the result. mend: how to fix the problem, empty if there is none."""

    check: str
    grade: Grade
    what: str
    mend: str = ""


def ok(check: str, what: str) -> Finding:
    return Finding(check, Grade.OK, what)


def warn(check: str, what: str, mend: str) -> Finding:
    return Finding(check, Grade.WARN, what, mend)


def fail(check: str, what: str, mend: str) -> Finding:
    return Finding(check, Grade.FAIL, what, mend)


def guarded(check: str, check_function: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Run a check. An unexpected exception becomes a finding, so that the other checks still run."""
    try:
        yield from check_function()
    except Exception as error:
        what = f"the check failed: {type(error).__name__}: {error}".splitlines()[0]
        yield warn(check, what, "report this line, with the versions that `medusaq doctor --json` gives")
