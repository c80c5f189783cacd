"""Writes Excel workbooks row by row, by openpyxl."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from tables.base.errors import TableError
from tables.base.values import text_of
from tables.targets.writer import TableWriter

MAX_ROWS = 1_048_576  # of a sheet, with its header
MAX_COLUMNS = 16_384
MAX_CHARS = 32_767  # of a cell
EXACT_INTEGER = 2**53  # a cell's number is a double
UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # XML has no form for them
LINE_END = re.compile(
    "\r\n?"
)  # readers of XML make a line feed of it; so a cell has the same for all readers
ESCAPE = re.compile(
    "_(?=x[0-9A-Fa-f]{4}_)"
)  # spreadsheet programs read _x0041_ as A, _x005F_ as an underscore
FIRST_YEAR = 1900  # of its calendar


class XlsxWriter(TableWriter):
    """Text is text, whatever it begins with: no answer becomes a formula."""

    def __init__(self, path: Path, name: str, columns: Sequence[str]) -> None:
        import openpyxl

        if len(columns) > MAX_COLUMNS:
            raise TableError(f"{name}: a sheet of XLSX holds {MAX_COLUMNS:,} columns; write CSV or Parquet")
        self._path, self._name = path, name
        self._book = openpyxl.Workbook(write_only=True)
        self._sheet = self._book.create_sheet("Sheet1")
        self._rows = 0
        self._finished = False
        self.write(columns)

    def write(self, values: Sequence[Any]) -> None:
        if self._rows == MAX_ROWS:
            raise TableError(f"{self._name}: a sheet of XLSX holds {MAX_ROWS:,} rows; write CSV or Parquet")
        self._sheet.append([self._cell(value) for value in values])
        self._rows += 1

    def finish(self) -> None:
        self._finished = True
        self._book.save(self._path)

    def release(self) -> None:
        if not self._finished:  # its temporary file
            self._sheet.close()
            self._sheet._writer.cleanup()
        self._book.close()

    def _cell(self, value: Any) -> Any:
        from openpyxl.cell import WriteOnlyCell

        if value is None or isinstance(value, bool) or _is_number(value):
            return value
        if isinstance(value, (datetime.date, datetime.time)) and _in_calendar(value):
            return value
        text = UNWRITABLE.sub("\ufffd", LINE_END.sub("\n", text_of(value)))
        if len(text) > MAX_CHARS:
            self.cut += 1
            text = text[:MAX_CHARS]
        cell = WriteOnlyCell(self._sheet, value=ESCAPE.sub("_x005F_", text))
        cell.data_type = "s"
        return cell


def _is_number(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) <= EXACT_INTEGER
    return isinstance(value, (float, Decimal)) and math.isfinite(value)


def _in_calendar(value: datetime.date | datetime.time) -> bool:
    """Excel has no time zones, and no dates before 1900."""
    return getattr(value, "tzinfo", None) is None and getattr(value, "year", FIRST_YEAR + 1) > FIRST_YEAR
