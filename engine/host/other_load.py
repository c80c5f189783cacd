"""How much of the processor other processes use: a measurement beside them tells of them as well."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
IDLE = (3, 4)  # columns of its lines in which a core does nothing: idle, and idle while it waits for a disk
COUNTED = 8  # columns; those behind are part of others


class OtherLoad:
    """From its making on: the share of this process's cores that other processes take, between 0 and 1."""

    def __init__(self) -> None:
        self._began = _used()

    def share(self) -> float:
        """0 where the system does not tell."""
        now = _used()
        return share(self._began, now) if self._began and now else 0.0


@dataclass(frozen=True, slots=True)
class Used:
    """Seconds of our cores so far: all, used by anyone, used by this process and its ended children."""

    passed: float
    by_all: float
    own: float


def share(before: Used, after: Used) -> float:
    passed = after.passed - before.passed
    others = after.by_all - before.by_all - (after.own - before.own)
    return min(1.0, max(0.0, others / passed)) if passed > 0 else 0.0


def _used() -> Used | None:
    try:
        cores = os.sched_getaffinity(0)
        used = core_seconds(STAT.read_text(encoding="utf-8"), cores)
    except (OSError, AttributeError):  # not Linux
        return None
    return Used(time.monotonic() * len(cores), used, sum(os.times()[:4]))


def core_seconds(stat: str, cores: set[int]) -> float:
    """Seconds for which these cores were used, from the text of /proc/stat."""
    ticks = 0
    for line in stat.splitlines():
        name, *columns = line.split()
        number = name.removeprefix("cpu")
        if name.startswith("cpu") and number.isdigit() and int(number) in cores:
            ticks += sum(int(columns[i]) for i in range(min(COUNTED, len(columns))) if i not in IDLE)
    return ticks / os.sysconf("SC_CLK_TCK")
