"""Splits prompt files into records: JSON lines, plain text, CSV. A bad line becomes a Problem."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cli.base.errors import BadInput
from cli.prompts.formats import Format
from tasks.schema.job_request import Problem
from tasks.schema.json_lines import TOO_LONG, decoded, json_object, physical_lines

MAX_LINE_BYTES = 16 * 1024 * 1024  # four times what the gateway takes by default; bounds our memory
PEEK_BYTES = 4096
DEFAULT_COLUMN = "prompt"
NOT_UTF8 = "invalid_utf8"
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
OVERLONG = "\udc00"  # stands for an overlong line inside a CSV row; decoding never yields it


SUFFIXES = {
    ".csv": Format.CSV,
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSONL,
    ".txt": Format.TEXT,
}


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the file; number is the line it starts on, from 1."""

    number: int
    value: dict[str, Any] | Problem


def detect(stream: io.BufferedReader, suffix: str, column: str | None) -> Format:
    """Detect the format by the file's suffix, else by its first character."""
    if column is not None:
        return Format.CSV
    if suffix.lower() in SUFFIXES:
        return SUFFIXES[suffix.lower()]
    start = stream.peek(PEEK_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()
    return Format.JSONL if start.startswith((b"{", b"[")) else Format.TEXT


def records(stream: io.BufferedReader, form: Format, column: str | None) -> Iterator[Record]:
    """The records in order. Raises BadInput if the whole file is unreadable."""
    if form is Format.CSV:
        yield from _csv_records(stream, column)
        return
    for number, line in _lines(stream):
        if line is None:
            yield Record(number, _overlong())
        elif line.strip():
            yield Record(number, _value(line, form))


def _lines(stream: io.BufferedReader) -> Iterator[tuple[int, bytes | None]]:
    for number, line in physical_lines(stream, MAX_LINE_BYTES):
        if number == 1 and line is not None and line.startswith(UTF16_MARKS):
            raise BadInput("the file is UTF-16; save it as UTF-8")
        yield number, line


def _value(line: bytes, form: Format) -> dict[str, Any] | Problem:
    text = decoded(line.rstrip(b"\r\n" if form is Format.TEXT else None), NOT_UTF8)
    if isinstance(text, Problem):
        return text
    return {"prompt": text} if form is Format.TEXT else json_object(text)


def _csv_records(stream: io.BufferedReader, column: str | None) -> Iterator[Record]:
    csv.field_size_limit(MAX_LINE_BYTES)
    rows = csv.reader(_csv_lines(stream), strict=True)
    try:
        header = [name.strip() for name in next(rows, [])]
    except csv.Error as error:
        raise BadInput(f"line 1: not valid CSV: {error}") from None
    if not header:
        return
    wanted = _column(header, column)
    while True:
        number = rows.line_num + 1
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield Record(number, Problem(f"not valid CSV: {error}", code="invalid_csv_row"))
            continue
        if row:
            yield Record(number, _csv_row(header, row, wanted))


def _csv_lines(stream: io.BufferedReader) -> Iterator[str]:
    for _, line in _lines(stream):
        yield OVERLONG + "\n" if line is None else line.decode(errors="surrogateescape")


def _column(header: list[str], column: str | None) -> str:
    if column is None and len(header) == 1:
        return header[0]
    name = column or DEFAULT_COLUMN
    if name not in header:
        hint = "" if column else "; choose one with --column"
        raise BadInput(
            f"the CSV has no column {name!r}; its columns are {', '.join(map(repr, header))}{hint}"
        )
    return name


def _csv_row(header: list[str], row: list[str], column: str) -> dict[str, Any] | Problem:
    text = "".join(row)
    if OVERLONG in text:
        return _overlong()
    if any("\udc80" <= char <= "\udcff" for char in text):
        return Problem("not valid UTF-8", code=NOT_UTF8)
    if len(row) != len(header):
        return Problem(f"has {len(row)} cells, the header has {len(header)}", code="invalid_csv_row")
    cells = dict(zip(header, row, strict=True))
    value: dict[str, Any] = {"prompt": cells[column]}
    if column != "custom_id" and "custom_id" in cells:
        value["custom_id"] = cells["custom_id"]
    return value


def _overlong() -> Problem:
    return Problem(f"longer than {MAX_LINE_BYTES // 2**20} MiB", code=TOO_LONG)
