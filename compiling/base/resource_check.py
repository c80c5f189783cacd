"""Checks disk and memory before the work begins."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from compiling.base.errors import RoomError
from engine.host.system_memory import look_at_memory

PROCESS_BYTES = 300_000_000  # of one that measures, besides the model and its cells
CONVERTER_BYTES = 800_000_000  # of the converter before it reads a tensor
TENSOR_COPIES = 4  # of the largest tensor, each in 32 bits: the most that was seen while one is converted
VOCABULARY_BYTES = 64_000_000  # more than any tokenizer takes in a GGUF
NUMBER_BYTES = {"f32": 4, "f16": 2, "bf16": 2}  # formats that a checkpoint is converted to
CELLS = 4096  # more than the bulk prompts fill


@dataclass(frozen=True, slots=True)
class Conversion:
    """What is to be made of a checkpoint. numbers: in all of its tensors. largest: in the largest one, 0
    where that is not known yet. follows: bytes, at least, of the files that are to be made of the result.
    """

    name: str
    numbers: int
    format: str
    largest: int = 0
    follows: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        return self.numbers * NUMBER_BYTES[self.format]

    @property
    def exact(self) -> int:
        """Bytes of a file of its exact values, where it is not one itself."""
        return 2 * self.numbers if self.format == "bf16" else 0


def check_conversion(wanted: Conversion, folder: Path, *, fetched: int = 0) -> None:
    """fetched: bytes that are to be fetched to the folder's disk before. Raises RoomError."""
    made = wanted.bytes + VOCABULARY_BYTES
    follows = max(wanted.exact, sum(wanted.follows))
    needed, free = fetched + made + follows, shutil.disk_usage(folder).free
    if needed > free:
        parts = [f"{size(fetched)} for what is fetched"] * bool(fetched)
        parts += [f"{size(made)} for {wanted.name} as a GGUF"]
        parts += [f"at least {size(follows)} for what is made of it"] * bool(follows)
        raise RoomError(
            f"{folder}: {size(needed)} of disk are needed ({', '.join(parts)}), {size(free)} are free; give "
            "another folder, or name fewer types with --types"
        )
    converting = CONVERTER_BYTES + TENSOR_COPIES * 4 * wanted.largest
    available = look_at_memory().available
    if converting > available:
        raise RoomError(
            f"{wanted.name}: {size(converting)} of memory are needed to convert it, and "
            f"{size(available)} are free"
        )
    if wanted.follows:
        check_memory(f"{wanted.name} as a GGUF", wanted.bytes, 0)


def check_disk(folder: Path, needed: int) -> None:
    """Raises RoomError with both numbers."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise RoomError(
            f"{folder}: {size(needed)} of disk are needed, {size(free)} are free; name fewer types with "
            "--types, or give another folder"
        )


def check_memory(name: str, largest: int, cell_bytes: int) -> None:
    """largest: bytes of the largest file that is to be loaded, called name. Raises RoomError."""
    needed = largest + CELLS * cell_bytes + PROCESS_BYTES
    free = look_at_memory().available
    if needed > free:
        raise RoomError(
            f"{name}: {size(needed)} of memory are needed to measure it, for a file of {size(largest)}, and "
            f"{size(free)} are free"
        )


def make_folder(folder: Path) -> None:
    """Create a folder and check that files can be written there. Raises RoomError."""
    probe = folder / ".writable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise RoomError(f"{folder}: cannot be written: {error.strerror}") from None


def existing(path: Path) -> Path:
    """This folder, or the nearest above it that is there."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.exists())


def size(count: int) -> str:
    """As in "4.1 GB"."""
    amount = float(count)
    for unit in ("bytes", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"
