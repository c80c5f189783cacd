"""Files and folders that only their owner can read: all that a stack and its services write."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

FOLDER, FILE = 0o700, 0o600


def write_privately() -> None:
    """Whatever this process creates from now on, and its children, is for its user alone."""
    os.umask(0o077)


def private_opener(path: str, flags: int) -> int:
    """For open(), in a process that also writes files of its user."""
    return os.open(path, flags, FILE)


def make_private(paths: Iterable[Path]) -> None:
    """Close what is there, folders with all in them, to others. Raises OSError."""
    for path in paths:
        for each in (path, *_inside(path)):
            found = each.lstat()
            wanted = FOLDER if stat.S_ISDIR(found.st_mode) else FILE
            if not stat.S_ISLNK(found.st_mode) and stat.S_IMODE(found.st_mode) != wanted:
                each.chmod(wanted)


def _inside(path: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(path):
        yield from (Path(folder, name) for name in (*folders, *files))
