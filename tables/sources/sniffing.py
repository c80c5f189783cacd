"""Guesses how a text table is encoded and which character separates its values."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from pathlib import Path

from tables.base.errors import TableError
from tables.base.kinds import SEPARATORS, reading

CHUNK = 1 << 20
SAMPLE_CHARS = 64 * 1024
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def encoding_of(path: Path, name: str) -> str:
    """utf-8-sig, utf-16, or what a file that is neither most likely has: cp1252, else latin-1.

    The whole file is read, since its first wrong byte may be its last.
    """
    with reading(path, name) as stream:
        start = stream.read(2)
        if start in UTF16_MARKS:
            return "utf-16"
    decoders = {each: codecs.getincrementaldecoder(each)() for each in ("utf-8", "cp1252")}
    for chunk in _chunks(path, name):
        for encoding, decoder in [*decoders.items()]:
            try:
                decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError:
                del decoders[encoding]
        if not decoders:
            break
    if "utf-8" in decoders:
        return "utf-8-sig"  # with or without the mark
    return "cp1252" if decoders else "latin-1"


def _chunks(path: Path, name: str) -> Iterator[bytes]:
    """The content, and an empty chunk at the end."""
    with reading(path, name) as stream:
        while chunk := stream.read(CHUNK):
            yield chunk
    yield b""


def separator_of(path: Path, name: str, encoding: str) -> str:
    """The character that splits the header into names, and the first rows into equally many values.

    Of several, the one that makes the most columns; a comma if none does.
    """
    with reading(path, name) as stream:
        raw = stream.read(SAMPLE_CHARS)
    sample = raw.decode(encoding, errors="ignore")
    if "\0" in sample:
        raise TableError(f"{name}: not a text file, it holds zero bytes")
    best, most = ",", (False, 1)
    for separator in SEPARATORS:
        rows = _rows(sample, separator, cut=len(raw) == SAMPLE_CHARS)
        if rows and len(rows[0]) > 1 and all(name.strip() for name in rows[0]):
            quality = (len(set(map(len, rows))) == 1, len(rows[0]))
            if quality > most:
                best, most = separator, quality
    return best


def _rows(sample: str, separator: str, *, cut: bool) -> list[list[str]]:
    """The rows of the sample, of which the last one may be cut off."""
    try:
        rows = [row for row in csv.reader(io.StringIO(sample, newline=""), delimiter=separator) if row]
    except csv.Error:
        return []
    return rows[:-1] if cut and len(rows) > 1 else rows


def spoken(encoding: str) -> str:
    """The encoding for the description; "" for UTF-8, which is nothing to tell."""
    return (
        "" if encoding == "utf-8-sig" else f", {encoding} (guessed)" if encoding != "utf-16" else ", UTF-16"
    )
