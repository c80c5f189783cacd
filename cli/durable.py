"""Files that outlast a loss of power once they are said to be written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from cli.errors import writing


def sync(file: IO[bytes]) -> None:
    """Bring what was written to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames, removals and new files in the folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file, whole or not at all. Raises CliError."""
    part = path.with_name(f"{path.name}.part")
    with writing(path):
        with part.open("wb") as file:
            file.write(content)
            sync(file)
        part.replace(path)
        sync_folder(path.parent)
