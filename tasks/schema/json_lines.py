"""Reads the lines of a text file in bounded memory, and the JSON object of a line or the problem with it."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from common.json_text import refuse_constant
from tasks.schema.job_request import Problem

BAD_JSON = "invalid_json_line"
TOO_LONG = "line_too_long"


def physical_lines(stream: BinaryIO, most_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """All lines with their endings, numbered from 1; None for a line longer than most_bytes.

    A UTF-8 byte order mark is removed.
    """
    number = 0
    while line := stream.readline(most_bytes + 1):
        number += 1
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if len(line) > most_bytes:
            while line and not line.endswith(b"\n"):
                line = stream.readline(most_bytes)
            yield number, None
        else:
            yield number, line


def decoded(line: bytes, code: str) -> str | Problem:
    """The text of a line, or a Problem with this code if it is not UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        return Problem(f"not valid UTF-8 at byte {error.start + 1} of the line", code=code)


def json_object(text: str) -> dict[str, Any] | Problem:
    """The JSON object of a line, or the problem with it."""
    try:
        value = json.loads(text, parse_constant=refuse_constant)
    except json.JSONDecodeError as error:
        return Problem(f"not valid JSON: {error.msg} (column {error.colno})", code=BAD_JSON)
    except (ValueError, RecursionError) as error:
        return Problem(f"not valid JSON: {error}", code=BAD_JSON)
    if not isinstance(value, dict):
        return Problem("must be a JSON object, one on each line", code=BAD_JSON)
    return value
