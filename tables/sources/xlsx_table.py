"""Excel workbooks: the first sheet, read row by row by openpyxl."""

from __future__ import annotations

import contextlib
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tables.base.errors import TableError
from tables.base.table import MAX_COLUMNS, ObservedTypes, Row, Table, checked_columns

MAX_SHARED_BYTES = 256 * 1024 * 1024  # uncompressed, of what openpyxl holds in memory: strings and styles
FORMULA = "f"
ESCAPED = re.compile(
    "_x((?![dD][89a-fA-F])[0-9A-Fa-f]{4})_"
)  # a character that XML has no form for, as in _x000D_


class XlsxTable(Table):
    """Formulas have the values that the spreadsheet program stored. Rows without any value are skipped."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        self._check_size()
        with self._sheet(values=True) as (title, rows), self._errors():
            header = next(rows, ())
            self._width = _width(header)
        if not self._width:
            raise TableError(f"{name}: the table is empty; its first row must have the names of the columns")
        names = ["" if cell.value is None else str(_value(cell)).strip() for cell in header[: self._width]]
        self.columns = checked_columns(names, name)
        self.description = f"XLSX, sheet {title!r}"

    def rows(self) -> Iterator[Row]:
        number = 0
        with self._errors(), contextlib.ExitStack() as opened:
            _, sheet = opened.enter_context(self._sheet(values=False))
            next(sheet, None)
            stored: Iterator[tuple[Any, ...]] | None = None
            position = 1  # rows of the sheet that were read
            stored_position = 1
            for cells in sheet:
                position += 1
                values = [_value(cell) for cell in cells[: self._width]]
                if any(cell.data_type == FORMULA for cell in cells[: self._width]):
                    if stored is None:
                        _, stored = opened.enter_context(self._sheet(values=True))
                        next(stored, None)
                    while stored_position < position:
                        other = next(stored)
                        stored_position += 1
                    values = self._computed(cells[: self._width], other)
                if _width(cells) > self._width:
                    place = _place(cells, self._width, position)
                    raise TableError(f"{self._name}: cell {place} is in a column without a name")
                if all(value is None for value in values):
                    continue
                number += 1
                yield Row(number, (*values, *[None] * (self._width - len(values))))

    def types(self) -> Mapping[str, str]:
        """Reads the whole sheet."""
        found = ObservedTypes()
        for row in self.rows():
            for column, value in zip(self.columns, row.values, strict=True):
                found.add(column, value)
        return found.types(self.columns)

    def _computed(self, cells: tuple[Any, ...], stored: tuple[Any, ...]) -> list[Any]:
        values = []
        for index, cell in enumerate(cells):
            value = _value(cell)
            if cell.data_type == FORMULA:
                value = _value(stored[index]) if index < len(stored) else None
                if value is None:
                    raise TableError(
                        f"{self._name}: cell {cell.coordinate} is a formula without a stored value; "
                        "open and save the file in a spreadsheet program"
                    )
            values.append(value)
        return values

    def _check_size(self) -> None:
        try:
            with zipfile.ZipFile(self._path) as archive:
                for item in archive.infolist():
                    if "/worksheets/" not in item.filename and item.file_size > MAX_SHARED_BYTES:
                        message = f"{item.filename} in it has more than {MAX_SHARED_BYTES >> 20} MiB"
                        raise TableError(f"{self._name}: too large to read: {message}; save it as CSV")
        except OSError as error:
            raise TableError(f"cannot read {self._name}: {error.strerror or error}") from None
        except zipfile.BadZipFile:
            raise TableError(f"{self._name}: not an XLSX file, or a torn one") from None

    @contextlib.contextmanager
    def _sheet(self, *, values: bool) -> Iterator[tuple[str, Iterator[tuple[Any, ...]]]]:
        """The title and the rows. values: those of formulas, as stored, not the formulas."""
        import openpyxl

        with self._errors():
            with warnings.catch_warnings():  # of features that it does not read, such as styles
                warnings.simplefilter("ignore")
                book = openpyxl.load_workbook(self._path, read_only=True, data_only=values, rich_text=True)
            if not book.worksheets:
                raise TableError(f"{self._name}: the workbook has no sheet")
            sheet = book.worksheets[0]
            sheet.reset_dimensions()  # those that a program wrote may be wrong
        try:
            yield sheet.title, sheet.iter_rows(max_col=MAX_COLUMNS)
        finally:
            book.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (TableError, GeneratorExit):
            raise
        except OSError as error:
            raise TableError(f"cannot read {self._name}: {error.strerror or error}") from None
        except MemoryError:  # a megabyte may expand to gigabytes
            message = "too large to read: a cell or row of it expands to more than the memory allowed for it"
            raise TableError(f"{self._name}: {message}; save the sheet as CSV") from None
        except Exception as error:  # openpyxl raises whatever a damaged file leads to
            raise TableError(f"{self._name}: the XLSX file is damaged: {error}") from None


def _value(cell: Any) -> Any:
    """What the cell holds, whose text may have escapes."""
    value = cell.value
    if isinstance(value, list):  # formatted in parts
        value = str(value)
    if isinstance(value, str) and "_x" in value:
        return ESCAPED.sub(lambda found: chr(int(found[1], 16)), value)
    return value


def _width(cells: tuple[Any, ...]) -> int:
    """The number of cells up to the last one with a value."""
    return max((index for index, cell in enumerate(cells, 1) if cell.value is not None), default=0)


def _place(cells: tuple[Any, ...], width: int, row: int) -> str:
    found = next(cell for cell in cells[width:] if cell.value is not None)
    return str(getattr(found, "coordinate", f"in row {row}"))
