"""Atomic file writes: the content goes to a temporary file beside the target, which then replaces it.

The temporary file is removed if the write fails. One that a killed process left behind is removed by the next
write of the same target: a live writer holds a lock on it. PyPI's atomicwrites has no such cleanup, and is
archived.

durable: fsync the file before the rename, and the folder after it, so that a power loss leaves the old or the
new content. Otherwise it may leave an empty file.
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

TOKEN_BYTES = 4  # in the name of a temporary file: TARGET.0123abcd.part
ANY_TOKEN = "[0-9a-f]" * (2 * TOKEN_BYTES)


def atomic_write(target: Path, content: bytes | str, *, durable: bool) -> None:
    """Replace the target. Text is written as UTF-8. Raises OSError."""
    with atomic_file(target, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def atomic_file(target: Path, *, durable: bool) -> Iterator[BinaryIO]:
    """Open a stream whose content replaces the target at the end of the block. Raises OSError."""
    with _part_of(target) as (part, stream):
        yield stream
        stream.flush()
        if durable:
            os.fsync(stream.fileno())
        _move(part, target, durable)


@contextmanager
def atomic_path(target: Path, *, durable: bool) -> Iterator[Path]:
    """Create an empty file that replaces the target at the end of the block, for writers that need a path.

    Raises OSError.
    """
    with _part_of(target) as (part, _):
        yield part
        if durable:
            sync_path(part)
        _move(part, target, durable)


def check_writable(target: Path) -> None:
    """Raise OSError if the target's folder does not allow a write."""
    with _part_of(target):
        pass


def sync_file(file: IO[bytes]) -> None:
    """Flush an open file to disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_path(path: Path) -> None:
    """Flush a file to disk, or a folder's entries."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # this file system does not support fsync of folders
            raise
    finally:
        os.close(handle)


def _move(part: Path, target: Path, durable: bool) -> None:
    part.replace(target)
    if durable:
        sync_path(target.parent)


@contextmanager
def _part_of(target: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A locked temporary file beside the target, removed at the end unless it was renamed."""
    for leftover in target.parent.glob(f"{glob.escape(target.name)}.{ANY_TOKEN}.part"):
        with suppress(OSError), leftover.open("rb") as stream:  # locked by a live writer, or already removed
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            leftover.unlink()
    while True:
        part = target.with_name(f"{target.name}.{secrets.token_hex(TOKEN_BYTES)}.part")
        with part.open("xb") as stream:
            try:
                with suppress(OSError):  # no locks on this file system: leftovers are not cleaned up
                    fcntl.flock(stream, fcntl.LOCK_EX)
                if os.fstat(stream.fileno()).st_nlink:
                    yield part, stream
                    return
            finally:
                part.unlink(missing_ok=True)
