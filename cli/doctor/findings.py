"""What a check says: one line, and one more that mends it."""

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
    """check: what was looked at; mend: what to do about it, empty for what is well."""

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
    """What a check finds; one that breaks is a finding too, and keeps no other from being made."""
    try:
        yield from check_function()
    except Exception as error:
        what = f"could not be looked at: {type(error).__name__}: {error}".splitlines()[0]
        yield warn(check, what, "report this line, with the versions that `medusaq doctor --json` gives")
