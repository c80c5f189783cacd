"""Whether disk and memory suffice, before hours are spent."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil

from compiling.errors import RoomError

PROCESS_BYTES = 300_000_000  # of one that measures, besides the model and its cells
CELLS = 4096  # more than the bulk prompts fill


def check_disk(folder: Path, needed: int) -> None:
    """Raises RoomError with both numbers."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise RoomError(
            f"{folder}: {size(needed)} of disk are needed, {size(free)} are free; name fewer types with "
            "--types, or give another folder"
        )


def check_memory(largest: int, cell_bytes: int) -> None:
    """largest: bytes of the largest file that is to be loaded. Raises RoomError with both numbers."""
    needed = largest + CELLS * cell_bytes + PROCESS_BYTES
    free = psutil.virtual_memory().available
    if needed > free:
        raise RoomError(
            f"{size(needed)} of memory are needed, for a file of {size(largest)}, and {size(free)} are free; "
            "name smaller types with --types"
        )


def make_folder(folder: Path) -> None:
    """And see that files can be written there. Raises RoomError."""
    probe = folder / ".writable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise RoomError(f"{folder}: cannot be written: {error.strerror}") from None


def size(count: int) -> str:
    """As in "4.1 GB"."""
    amount = float(count)
    for unit in ("bytes", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"
