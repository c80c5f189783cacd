"""Digests of registered files, and whether the files still match them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from engine.base.errors import RegisterError

READ_BYTES = 1 << 20

Progress = Callable[[int], None]  # called with the number of bytes read since the last call


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Digest of a file, or of a folder of heads, at registration. source: what the user typed."""

    path: str
    sha256: str
    bytes: int
    source: str


class State(StrEnum):
    """State of a registered file."""

    OK = "ok"
    MISSING = "missing"
    CHANGED = "changed"


def files_below(path: Path) -> list[Path]:
    """The file itself, or all files of a folder, by name. Raises RegisterError where there is none."""
    try:
        found = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        if not all(p.is_file() for p in found):
            raise RegisterError(f"{path}: no such file or folder")
    except OSError as error:
        raise RegisterError(f"{path}: cannot be read: {error.strerror}") from error
    return found


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files of a folder. Raises RegisterError."""
    try:
        return sum(file.stat().st_size for file in files_below(path))
    except OSError as error:
        raise RegisterError(f"{path}: cannot be read: {error.strerror}") from error


def digest_file(path: Path, source: str, progress: Progress = lambda _: None) -> FileDigest:
    """Digest a file or a folder, reading all of it. Raises RegisterError.

    The hash of a folder is the hash of its files' hashes and names, as sha256sum prints them.
    """
    path = path.expanduser().absolute()
    try:
        files = files_below(path)
        hashes = [sha256(file, progress) for file in files]
        size = sum(file.stat().st_size for file in files)
    except OSError as error:
        raise RegisterError(f"{path}: cannot be read: {error.strerror}") from error
    if path.is_dir():
        lines = (f"{sha}  {file.relative_to(path)}\n" for sha, file in zip(hashes, files, strict=True))
        hashes = [hashlib.sha256("".join(lines).encode()).hexdigest()]
    return FileDigest(str(path), hashes[0], size, source)


def state_of(file: FileDigest, progress: Progress = lambda _: None) -> State:
    """Compare a file with its digest; a file whose size has changed is not read. Raises RegisterError."""
    path = Path(file.path)
    if not path.exists():
        return State.MISSING
    if size_of(path) != file.bytes or digest_file(path, file.source, progress).sha256 != file.sha256:
        return State.CHANGED
    return State.OK


def sha256(path: Path, progress: Progress = lambda _: None) -> str:
    """Of the content, in hexadecimal. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(READ_BYTES):
            digest.update(block)
            progress(len(block))
    return digest.hexdigest()
