"""Memory of this machine, or of the container that this process runs in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

CONTAINER = Path("/sys/fs/cgroup")
FILE_PAGES = ("inactive_file", "active_file")  # counted as used, but reclaimed when memory is needed


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes: the most that this process can get, and what is free of it now."""

    whole: int
    available: int


def look_at_memory() -> Memory:
    memory = psutil.virtual_memory()
    whole, available = memory.total, memory.available
    try:
        limit = (CONTAINER / "memory.max").read_text(encoding="utf-8").strip()
        if limit != "max":
            whole = min(whole, int(limit))
            available = min(available, int(limit) - _used(CONTAINER))
    except (OSError, ValueError):  # not Linux, or not in a container
        pass
    return Memory(whole, max(0, available))


def _used(container: Path) -> int:
    used = int((container / "memory.current").read_text(encoding="utf-8"))
    counts = dict(
        line.split() for line in (container / "memory.stat").read_text(encoding="utf-8").splitlines()
    )
    return used - sum(int(counts.get(name, 0)) for name in FILE_PAGES)
