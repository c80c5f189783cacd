"""Tables of values separated by a character."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from tables.base.errors import TableError
from tables.base.kinds import SEPARATORS, Kind, reading
from tables.base.table import Row, Table, checked_columns
from tables.sources.sniffing import encoding_of, separator_of, spoken

MAX_VALUE_CHARS = 16 * 1024 * 1024
MAX_LINE_CHARS = 2 * MAX_VALUE_CHARS


class CsvTable(Table):
    """Rows without any value, such as blank lines, are skipped."""

    def __init__(self, path: Path, name: str, kind: Kind) -> None:
        self._path, self._name = path, name
        self._encoding = encoding_of(path, name)
        self._separator = "\t" if kind is Kind.TSV else separator_of(path, name, self._encoding)
        header = next(self._records(), None)
        if header is None:
            raise TableError(f"{name}: the table is empty")
        self.columns = checked_columns([column.strip() for column in header[1]], name)
        label = "TSV" if kind is Kind.TSV else f"CSV, separated by {SEPARATORS[self._separator]}"
        self.description = label + spoken(self._encoding)

    def rows(self) -> Iterator[Row]:
        records = self._records()
        next(records, None)
        for number, (line, values) in enumerate(records, 1):
            if len(values) != len(self.columns):
                raise TableError(
                    f"{self._name}: row {number} (line {line}) has {_count(len(values), 'value')}, "
                    f"the table has {_count(len(self.columns), 'column')}"
                )
            yield Row(number, tuple(values))

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Each record, and the line on which it starts."""
        csv.field_size_limit(MAX_VALUE_CHARS)
        with (
            reading(self._path, self._name) as stream,
            io.TextIOWrapper(stream, self._encoding, newline="") as text,
        ):
            rows = csv.reader(_lines(text, self._name), delimiter=self._separator, strict=True)
            while True:
                line = rows.line_num + 1
                try:
                    values = next(rows, None)
                except csv.Error as error:
                    raise TableError(f"{self._name}, line {line}: not valid CSV: {error}") from None
                except UnicodeDecodeError:
                    raise TableError(f"{self._name}, line {line}: not valid {self._encoding}") from None
                if values is None:
                    return
                if values:
                    yield line, values


def _lines(text: io.TextIOWrapper, name: str) -> Iterator[str]:
    number = 0
    while line := text.readline(MAX_LINE_CHARS):
        number += 1
        if len(line) == MAX_LINE_CHARS:
            raise TableError(f"{name}, line {number}: longer than {MAX_LINE_CHARS:,} characters")
        yield line


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
