"""Tables of JSON objects: one on each line, or in an array."""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common.json_text import refuse_constant
from tables.base.errors import TableError
from tables.base.kinds import Kind, reading
from tables.base.table import MAX_COLUMNS, ObservedTypes, Row, Table, checked_columns

MAX_OBJECT_CHARS = 16 * 1024 * 1024
READ_CHARS = 64 * 1024
BLANKS = " \t\r\n"


class JsonTable(Table):
    """The columns are the fields of all objects, in the order in which they first occur."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        kind = Kind.ARRAY if self._start() == "[" else Kind.LINES
        self._read = self._elements if kind is Kind.ARRAY else self._lines
        self._types = ObservedTypes()
        columns: dict[str, None] = {}
        for value in self._objects():
            for column, item in value.items():
                columns[column] = None
                self._types.add(column, item)
            if len(columns) > MAX_COLUMNS:
                break
        if not columns:
            raise TableError(f"{name}: the table is empty")
        self.columns = checked_columns([*columns], name)
        self.description = "a JSON array of objects" if kind is Kind.ARRAY else "JSON lines"

    def rows(self) -> Iterator[Row]:
        for number, value in enumerate(self._objects(), 1):
            yield Row(number, tuple(value.get(column) for column in self.columns))

    def types(self) -> Mapping[str, str]:
        return self._types.types(self.columns)

    def _start(self) -> str:
        with reading(self._path, self._name) as stream:
            while start := stream.read(READ_CHARS):
                if text := start.removeprefix(codecs.BOM_UTF8).lstrip(BLANKS.encode()):
                    return text[:1].decode(errors="replace")
        return ""

    def _objects(self) -> Iterator[dict[str, Any]]:
        try:
            for place, value in self._read():
                if not isinstance(value, dict):
                    raise TableError(f"{self._name}, {place}: must be a JSON object")
                yield value
        except UnicodeDecodeError:
            raise TableError(f"{self._name}: JSON must be UTF-8, and this file is not") from None

    def _text(self) -> _Text:
        return _Text(self._path, self._name)

    def _lines(self) -> Iterator[tuple[str, Any]]:
        with self._text() as text:
            number = 0
            while line := text.readline(MAX_OBJECT_CHARS + 1):
                number += 1
                if len(line) > MAX_OBJECT_CHARS:
                    raise TableError(self._too_long(f"line {number}"))
                if line.strip():
                    yield f"line {number}", self._parsed(line, f"line {number}")

    def _elements(self) -> Iterator[tuple[str, Any]]:
        """The elements of the array, each parsed when it is complete."""
        with self._text() as text:
            window = _Window(text)
            window.skip("[")
            number = 0
            while (character := window.peek()) != "]":
                if number:
                    if character != ",":
                        raise TableError(f"{self._name}, after element {number}: expected a comma or ]")
                    window.skip(",")
                number += 1
                yield f"element {number}", self._element(window, f"element {number}")
            window.skip("]")
            if window.peek():
                raise TableError(f"{self._name}: there is something after the array")

    def _element(self, window: _Window, place: str) -> Any:
        if window.peek() != "{":
            raise TableError(f"{self._name}, {place}: must be a JSON object")
        decoder = json.JSONDecoder(parse_constant=refuse_constant)
        while True:
            try:
                value, end = decoder.raw_decode(window.text)
            except (ValueError, RecursionError) as error:
                if len(window.text) > MAX_OBJECT_CHARS:
                    raise TableError(self._too_long(place)) from None
                if not window.more():
                    raise TableError(f"{self._name}, {place}: not valid JSON: {error}") from None
            else:
                window.drop(end)
                return value

    def _parsed(self, line: str, place: str) -> Any:
        try:
            return json.loads(line, parse_constant=refuse_constant)
        except json.JSONDecodeError as error:
            message = f"{error.msg} (column {error.colno})"
        except (ValueError, RecursionError) as error:
            message = str(error)
        raise TableError(f"{self._name}, {place}: not valid JSON: {message}") from None

    def _too_long(self, place: str) -> str:
        return f"{self._name}, {place}: longer than {MAX_OBJECT_CHARS:,} characters"


class _Text:
    """A context manager: the text of a file."""

    def __init__(self, path: Path, name: str) -> None:
        self._reading = reading(path, name)

    def __enter__(self) -> io.TextIOWrapper:
        return io.TextIOWrapper(self._reading.__enter__(), "utf-8-sig")

    def __exit__(self, *about: Any) -> bool | None:
        return self._reading.__exit__(*about)


class _Window:
    """The unread part of a text, as far as it was needed. more() doubles it, so that parsing is linear."""

    def __init__(self, file: io.TextIOWrapper) -> None:
        self._file = file
        self.text = ""

    def more(self) -> bool:
        """Read on; False at the end of the file."""
        found = self._file.read(max(READ_CHARS, len(self.text)))
        self.text += found
        return bool(found)

    def peek(self) -> str:
        """The next character that is not blank; "" at the end."""
        while True:
            self.text = self.text.lstrip(BLANKS)
            if self.text or not self.more():
                return self.text[:1]

    def skip(self, character: str) -> None:
        assert self.peek() == character
        self.drop(1)

    def drop(self, count: int) -> None:
        self.text = self.text[count:]
