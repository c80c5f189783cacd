"""Files that appear whole or not at all, and leave nothing behind when their writer is killed."""

from __future__ import annotations

import fcntl
import glob
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from engine.errors import ModelLoadError


@contextmanager
def part_of(target: Path) -> Iterator[Path]:
    """A file beside the target to write to, which is gone in the end; so are those of killed processes."""
    try:
        for leftover in target.parent.glob(f"{glob.escape(target.name)}.*.part"):
            with suppress(FileNotFoundError, BlockingIOError), leftover.open("rb") as stream:
                _lock(stream)
                leftover.unlink()
        part = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
        with part.open("xb") as stream:
            try:
                _lock(stream)
                yield part
            finally:
                part.unlink(missing_ok=True)
    except OSError as error:
        raise ModelLoadError(f"{target}: cannot be written: {error.strerror}") from error


def _lock(stream: IO[bytes]) -> None:
    """Held while its process lives. Raises BlockingIOError when another one does."""
    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
