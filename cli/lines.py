"""Prompt files cut into records: JSON lines, plain text, CSV. One bad line is a Problem, never the end."""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cli.errors import BadInput
from cli.formats import Format
from tasks.requests import Problem

MAX_LINE_BYTES = 16 * 1024 * 1024  # four times what the gateway takes by default; bounds our memory
PEEK_BYTES = 4096
DEFAULT_COLUMN = "prompt"
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
    """The format by the file's name, else by its first character."""
    if column is not None:
        return Format.CSV
    if suffix.lower() in SUFFIXES:
        return SUFFIXES[suffix.lower()]
    start = stream.peek(PEEK_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()
    return Format.JSONL if start.startswith((b"{", b"[")) else Format.TEXT


def records(stream: io.BufferedReader, form: Format, column: str | None) -> Iterator[Record]:
    """The file's records in order. Raises BadInput for what makes the whole file unreadable."""
    if form is Format.CSV:
        yield from _csv_records(stream, column)
        return
    for number, line in _physical_lines(stream):
        if line is None:
            yield Record(number, _overlong())
        elif line.strip():
            yield Record(number, _text(line) if form is Format.TEXT else _json(line))


def _physical_lines(stream: io.BufferedReader) -> Iterator[tuple[int, bytes | None]]:
    """Numbered lines with their endings; None for one that is too long to be held."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if number == 1:
            if line.startswith(UTF16_MARKS):
                raise BadInput("the file is UTF-16; save it as UTF-8")
            line = line.removeprefix(codecs.BOM_UTF8)
        if len(line) > MAX_LINE_BYTES:
            while line and not line.endswith(b"\n"):
                line = stream.readline(MAX_LINE_BYTES)
            yield number, None
        else:
            yield number, line


def _text(line: bytes) -> dict[str, Any] | Problem:
    try:
        return {"prompt": line.decode().rstrip("\r\n")}
    except UnicodeDecodeError as error:
        return _not_utf8(error)


def _json(line: bytes) -> dict[str, Any] | Problem:
    try:
        value = json.loads(line.rstrip().decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        return _not_utf8(error)
    except json.JSONDecodeError as error:
        return Problem(f"not valid JSON: {error.msg} (column {error.colno})", code="invalid_json_line")
    except (ValueError, RecursionError) as error:
        return Problem(f"not valid JSON: {error}", code="invalid_json_line")
    if not isinstance(value, dict):
        return Problem("must be a JSON object, one on each line", code="invalid_json_line")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


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
    for _, line in _physical_lines(stream):
        yield OVERLONG + "\n" if line is None else line.decode(errors="surrogateescape")


def _column(header: list[str], column: str | None) -> str:
    if column is None and len(header) == 1:
        return header[0]
    name = column or DEFAULT_COLUMN
    if name not in header:
        hint = "" if column else "; name the prompts' with --column"
        raise BadInput(
            f"the CSV has no column {name!r}; its columns are {', '.join(map(repr, header))}{hint}"
        )
    return name


def _csv_row(header: list[str], row: list[str], column: str) -> dict[str, Any] | Problem:
    text = "".join(row)
    if OVERLONG in text:
        return _overlong()
    if any("\udc80" <= char <= "\udcff" for char in text):
        return Problem("not valid UTF-8", code="invalid_utf8")
    if len(row) != len(header):
        return Problem(f"has {len(row)} cells, the header has {len(header)}", code="invalid_csv_row")
    cells = dict(zip(header, row, strict=True))
    value: dict[str, Any] = {"prompt": cells[column]}
    if column != "custom_id" and "custom_id" in cells:
        value["custom_id"] = cells["custom_id"]
    return value


def _not_utf8(error: UnicodeDecodeError) -> Problem:
    return Problem(f"not valid UTF-8 at byte {error.start + 1} of the line", code="invalid_utf8")


def _overlong() -> Problem:
    return Problem(f"longer than {MAX_LINE_BYTES // 2**20} MiB", code="line_too_long")
