"""Checks disk and memory before the work begins."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from common.units import size
from compiling.base.errors import RoomError
from engine.host.system_memory import look_at_memory

PROCESS_BYTES = 300_000_000  # of a measuring process, besides the model and its KV cells
CONVERTER_BYTES = 800_000_000  # of the converter before it reads a tensor
TENSOR_COPIES = 4  # of the largest tensor, each in 32 bits: the measured peak of the converter
VOCABULARY_BYTES = 64_000_000  # more than any tokenizer takes in a GGUF
NUMBER_BYTES = {"f32": 4, "f16": 2, "bf16": 2}  # formats that a checkpoint is converted to
CELLS = 4096  # more than the bulk prompts fill


@dataclass(frozen=True, slots=True)
class Conversion:
    """A conversion of a checkpoint. numbers: in all of its tensors. largest: in the largest one, 0 if that is
    unknown. follows: lower bounds, in bytes, of the files to be made from the result.
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
        """Bytes of the file of its exact values; 0 if the result itself is exact."""
        return 2 * self.numbers if self.format == "bf16" else 0


def check_conversion(wanted: Conversion, folder: Path, *, fetched: int = 0) -> None:
    """Check disk and memory. fetched: bytes to download to the folder's disk first. Raises RoomError."""
    made = wanted.bytes + VOCABULARY_BYTES
    follows = max(wanted.exact, sum(wanted.follows))
    needed, free = fetched + made + follows, shutil.disk_usage(folder).free
    if needed > free:
        parts = [f"{size(fetched)} for the download"] * bool(fetched)
        parts += [f"{size(made)} for {wanted.name} as a GGUF"]
        parts += [f"at least {size(follows)} for the files made from it"] * bool(follows)
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
    """Raises RoomError if less than `needed` bytes are free."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise RoomError(
            f"{folder}: {size(needed)} of disk are needed, {size(free)} are free; name fewer types with "
            "--types, or give another folder"
        )


def check_memory(name: str, largest: int, cell_bytes: int) -> None:
    """Raises RoomError if memory does not hold `name`, the largest model to load, of `largest` bytes."""
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
    """The folder, or its nearest ancestor that exists."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.exists())
