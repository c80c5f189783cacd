"""Splits files of requests into records: JSON lines, plain text. A bad line becomes a Problem."""

from __future__ import annotations

import codecs
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
NOT_UTF8 = "invalid_utf8"
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the file; number is the line it starts on, from 1."""

    number: int
    value: dict[str, Any] | Problem


def is_json(start: bytes) -> bool:
    """Whether the beginning of an input is that of JSON, not of plain text."""
    return start.removeprefix(codecs.BOM_UTF8).lstrip().startswith((b"{", b"["))


def records(stream: io.BufferedReader, form: Format) -> Iterator[Record]:
    """The records in order. Raises BadInput if the whole file is unreadable."""
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


def _overlong() -> Problem:
    return Problem(f"longer than {MAX_LINE_BYTES // 2**20} MiB", code=TOO_LONG)
