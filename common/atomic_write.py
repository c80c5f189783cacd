"""Files that appear whole or not at all: written beside their place under another name, then moved into it.

A part file is removed when the writing fails. What a killed process left is removed by the next write of the
same target: a living writer holds a lock on its part. PyPI's atomicwrites does without, and is archived.

durable: the content reaches the disk before the name does, and the name before the block ends, so that a loss
of power leaves the old file or the new one. Without it, it may leave an empty one.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

TOKEN_BYTES = 4  # of the name of a part: TARGET.0123abcd.part
ANY_TOKEN = "[0-9a-f]" * (2 * TOKEN_BYTES)


def atomic_write(target: Path, content: bytes | str, *, durable: bool) -> None:
    """Replace the target. Text is written as UTF-8. Raises OSError."""
    with atomic_file(target, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def atomic_file(target: Path, *, durable: bool) -> Iterator[BinaryIO]:
    """A stream, whose content replaces the target at the end of the block. Raises OSError."""
    with _part_of(target) as (part, stream):
        yield stream
        stream.flush()
        if durable:
            os.fsync(stream.fileno())
        _move(part, target, durable)


@contextmanager
def atomic_path(target: Path, *, durable: bool) -> Iterator[Path]:
    """For writers that open files by name: an empty file, which replaces the target at the end of the block.

    Raises OSError.
    """
    with _part_of(target) as (part, _):
        yield part
        if durable:
            sync_path(part)
        _move(part, target, durable)


def check_writable(target: Path) -> None:
    """Raises OSError where a write of the target could not even begin."""
    with _part_of(target):
        pass


def sync_file(file: IO[bytes]) -> None:
    """Bring what was written to an open file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_path(path: Path) -> None:
    """Bring a file to the disk; of a folder, its renames, removals and new entries."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that has no fsync of folders
            raise
    finally:
        os.close(handle)


def _move(part: Path, target: Path, durable: bool) -> None:
    part.replace(target)
    if durable:
        sync_path(target.parent)


@contextmanager
def _part_of(target: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A locked file beside the target, which is gone in the end unless it was moved."""
    for leftover in target.parent.glob(f"{glob.escape(target.name)}.{ANY_TOKEN}.part"):
        with suppress(OSError), leftover.open("rb") as stream:  # held by its writer, or removed by another
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            leftover.unlink()
    while True:
        part = target.with_name(f"{target.name}.{secrets.token_hex(TOKEN_BYTES)}.part")
        with part.open("xb") as stream:
            try:
                with suppress(OSError):  # a file system without locks, where leftovers stay
                    fcntl.flock(stream, fcntl.LOCK_EX)
                if os.fstat(stream.fileno()).st_nlink:
                    yield part, stream
                    return
            finally:
                part.unlink(missing_ok=True)
