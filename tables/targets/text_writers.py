"""Writes CSV, TSV and JSON lines, compressed where the name asks for it."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tables.base.kinds import SEPARATORS, deflating
from tables.base.values import json_text, text_of
from tables.targets.writer import TableWriter

# Spreadsheet programs take what begins so for a formula, some of them also after characters that they drop.
FORMULA = (*"=+-@", *"\uff1d\uff0b\uff0d\uff20")  # the latter are the wide forms
DROPPED = ("\t", "\r", "\n")
BOM = "\ufeff"
CRLF = "\r\n"


class _TextWriter(TableWriter):
    def __init__(self, path: Path, name: str) -> None:
        self._exits = contextlib.ExitStack()
        file = self._exits.enter_context(path.open("wb"))
        packed = self._exits.enter_context(deflating(file, name))
        # Half of a surrogate pair, which UTF-8 cannot hold, becomes "?".
        self._text = io.TextIOWrapper(packed, "utf-8", errors="replace", newline="")

    def finish(self) -> None:
        self._text.flush()
        self._text.detach()

    def release(self) -> None:
        self._exits.close()


class CsvWriter(_TextWriter):
    """safe: put a quote before text that a spreadsheet program would take for a formula."""

    def __init__(self, path: Path, name: str, columns: Sequence[str], separator: str, *, safe: bool) -> None:
        super().__init__(path, name)
        self._safe, self._separator = safe, separator
        guessed = any(mark in column for column in columns for mark in (*SEPARATORS, BOM))
        self._writer(csv.QUOTE_ALL if guessed else csv.QUOTE_MINIMAL).writerow(self._cells(columns))
        self._rows = self._writer(csv.QUOTE_MINIMAL)

    def write(self, values: Sequence[Any]) -> None:
        self._rows.writerow(self._cells(values))

    def _cells(self, values: Sequence[Any]) -> list[str]:
        cells = [text_of(value).replace("\0", "\ufffd") for value in values]
        return [_safe(cell) for cell in cells] if self._safe else cells

    def _writer(self, quoting: Literal[0, 1]) -> Any:
        return csv.writer(_Lines(self._text), delimiter=self._separator, quoting=quoting, lineterminator=CRLF)


class _Lines:
    """Ends lines with LF. Before Python 3.13 only a writer that ends them with CR LF quotes a lone CR."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text

    def write(self, line: str) -> None:
        self._text.write(line[: -len(CRLF)] + "\n")


class LinesWriter(_TextWriter):
    """Objects with the columns as fields."""

    def __init__(self, path: Path, name: str, columns: Sequence[str]) -> None:
        super().__init__(path, name)
        self._columns = columns

    def write(self, values: Sequence[Any]) -> None:
        self._text.write(json_text(dict(zip(self._columns, values, strict=True))) + "\n")


def _safe(cell: str) -> str:
    first = next((character for character in cell if character.isprintable() and character != " "), "")
    risky = cell.startswith(DROPPED) or (first in FORMULA and not _is_number(cell))
    return f"'{cell}" if risky else cell


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return cell[-1].isdigit()
