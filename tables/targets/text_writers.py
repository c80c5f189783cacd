"""Writes CSV, TSV and JSON lines, compressed where the name asks for it."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tables.base.kinds import deflating
from tables.base.values import json_text, text_of
from tables.targets.writer import TableWriter

RISKY = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet program takes what begins so for a formula


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
        self._safe = safe
        self._rows = csv.writer(self._text, delimiter=separator, lineterminator="\n")
        self.write(columns)

    def write(self, values: Sequence[Any]) -> None:
        cells = [text_of(value).replace("\0", "\ufffd") for value in values]
        self._rows.writerow([_safe(cell) for cell in cells] if self._safe else cells)


class LinesWriter(_TextWriter):
    """Objects with the columns as fields."""

    def __init__(self, path: Path, name: str, columns: Sequence[str]) -> None:
        super().__init__(path, name)
        self._columns = columns

    def write(self, values: Sequence[Any]) -> None:
        self._text.write(json_text(dict(zip(self._columns, values, strict=True))) + "\n")


def _safe(cell: str) -> str:
    return f"'{cell}" if cell.startswith(RISKY) and not _is_number(cell) else cell


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return cell[-1].isdigit()
