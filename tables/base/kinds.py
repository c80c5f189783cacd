"""Kinds of table files, told by the ending of the name, and the compression of text files."""

from __future__ import annotations

import contextlib
import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, cast

from tables.base.errors import TableError


class Kind(StrEnum):
    """What a file holds. LINES are JSON objects, one on each line; ARRAY is one JSON array of them."""

    CSV = "csv"
    TSV = "tsv"
    PARQUET = "parquet"
    XLSX = "xlsx"
    LINES = "jsonl"
    ARRAY = "json"
    TEXT = "text"
    FOLDER = "folder"


ENDINGS = {
    ".csv": Kind.CSV,
    ".tsv": Kind.TSV,
    ".tab": Kind.TSV,
    ".parquet": Kind.PARQUET,
    ".pq": Kind.PARQUET,
    ".xlsx": Kind.XLSX,
    ".jsonl": Kind.LINES,
    ".ndjson": Kind.LINES,
    ".json": Kind.ARRAY,
    ".txt": Kind.TEXT,
}
COMPRESSED = (".gz", ".zst")
WRITABLE = (".csv", ".tsv", ".parquet", ".xlsx", ".jsonl", ".ndjson")
BINARY = (Kind.PARQUET, Kind.XLSX)
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}  # that CSV may have
NEVER_LINES = (Kind.CSV, Kind.TSV, *BINARY)


def kind_of(name: str) -> Kind | None:
    """The kind by the ending, None if it is unknown. Raises TableError for a compressed binary file."""
    ending, compressed = _endings(name)
    kind = ENDINGS.get(ending)
    if kind in BINARY and compressed:
        raise TableError(f"{name}: {kind} is compressed in itself; give the file without {compressed}")
    return kind


def is_table(name: str) -> bool:
    """Whether a file of this name holds a table and no JSON, which might be requests."""
    try:
        return kind_of(name) in NEVER_LINES
    except TableError:
        return True


def output_kind(name: str) -> Kind:
    """The kind to write. Raises TableError, which lists the possible endings."""
    kind = kind_of(name)
    if kind is None or _endings(name)[0] not in WRITABLE:
        *some, last = WRITABLE
        endings = f"{', '.join(some)} or {last}"
        raise TableError(f"{name}: cannot write this kind of file; its name must end in {endings}")
    return kind


def _endings(name: str) -> tuple[str, str]:
    """The ending that tells the kind, and that of the compression or ""."""
    path = Path(name.lower())
    if path.suffix in COMPRESSED:
        return Path(path.stem).suffix, path.suffix
    return path.suffix, ""


@contextlib.contextmanager
def reading(path: Path, name: str) -> Iterator[BinaryIO]:
    """The uncompressed bytes of a text file. Errors, also those of the block, become TableErrors."""
    try:
        with path.open("rb") as file:
            yield cast("BinaryIO", io.BufferedReader(_inflated(file, name)))
    except OSError as error:  # also gzip's
        raise TableError(f"cannot read {name}: {error.strerror or error}") from None
    except (EOFError, zlib.error, _zstd_error()):
        raise TableError(f"{name}: the compressed file is torn or damaged") from None


def _inflated(file: BinaryIO, name: str) -> io.RawIOBase:
    if name.lower().endswith(".gz"):
        return cast("io.RawIOBase", gzip.GzipFile(fileobj=file))
    if name.lower().endswith(".zst"):
        return cast("io.RawIOBase", _zstd().ZstdFile(file))
    return cast("io.RawIOBase", file)


@contextlib.contextmanager
def deflating(file: BinaryIO, name: str) -> Iterator[BinaryIO]:
    """A stream that compresses into the file if the name asks for it."""
    if name.lower().endswith(".gz"):
        with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
            yield cast("BinaryIO", packed)
    elif name.lower().endswith(".zst"):
        with _zstd().ZstdFile(file, "wb") as packed:
            yield cast("BinaryIO", packed)
    else:
        yield file


if sys.version_info >= (3, 14):

    def _zstd() -> ModuleType:
        from compression import zstd

        return zstd
else:

    def _zstd() -> ModuleType:
        from backports import zstd

        return zstd


def _zstd_error() -> type[Exception]:
    """Its exception if the library was used, else one that nothing raises."""
    for module in ("compression.zstd", "backports.zstd"):
        if module in sys.modules:
            return cast("type[Exception]", sys.modules[module].ZstdError)
    return NotImplementedError
