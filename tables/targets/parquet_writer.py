"""Writes Parquet: rows are collected in a database file of DuckDB, whose table becomes the Parquet file.

It writes Parquet from a query alone; the file in between keeps the memory constant.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tables.base import sql
from tables.base.errors import TableError
from tables.base.table import TEXT_TYPE
from tables.base.values import text_of
from tables.targets.writer import TableWriter

BATCH_ROWS = 2000
INTEGERS = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT"}


class ParquetWriter(TableWriter):
    """types: the SQL type of each column; text if it has none. scratch: a folder for the file in between."""

    def __init__(
        self, path: Path, name: str, columns: Sequence[str], types: Mapping[str, str], scratch: Path
    ) -> None:
        lower = [column.lower() for column in columns]
        for column in columns:
            if lower.count(column.lower()) > 1:
                raise TableError(
                    f"{name}: in Parquet columns cannot differ by case alone, as {column!r} does"
                )
        self._path, self._name, self._columns = path, name, columns
        self._types = [types.get(column, TEXT_TYPE) for column in columns]
        with contextlib.ExitStack() as exits:
            folder = exits.enter_context(tempfile.TemporaryDirectory(prefix="table-", dir=scratch))
            self._database = exits.enter_context(sql.connect(Path(folder) / "rows"))
            fields = ", ".join(f"c{index} {kind}" for index, kind in enumerate(self._types))
            self._database.execute(f"CREATE TABLE rows ({fields})")
            self._exits = exits.pop_all()
        self._batch: list[Sequence[Any]] = []
        self._written = 0

    def write(self, values: Sequence[Any]) -> None:
        self._batch.append(
            [
                value if kind != TEXT_TYPE or value is None else _encodable(text_of(value))
                for value, kind in zip(values, self._types, strict=True)
            ]
        )
        if len(self._batch) == BATCH_ROWS:
            self._flush()

    def finish(self) -> None:
        self._flush()
        names = ", ".join(f"c{index} AS {sql.quoted(name)}" for index, name in enumerate(self._columns))
        target = sql.literal(str(self._path))
        self._run(f"COPY (SELECT {names} FROM rows) TO {target} (FORMAT parquet, COMPRESSION zstd)")

    def release(self) -> None:
        self._exits.close()

    def _flush(self) -> None:
        if self._batch:
            lists = [list(column) for column in zip(*self._batch, strict=True)]
            values = ", ".join(f"unnest(?::{sql.carrier(kind)}[])::{kind}" for kind in self._types)
            self._run(f"INSERT INTO rows SELECT {values}", lists)
            self._written += len(self._batch)
            self._batch.clear()

    def _run(self, statement: str, parameters: list[list[Any]] | None = None) -> None:
        import duckdb

        try:
            self._database.execute(statement, parameters)
        except duckdb.ConversionException as error:
            rows = f"rows {self._written + 1:,} to {self._written + len(self._batch):,}"
            raise TableError(f"{self._name}: {rows}: {sql.first_line(error)[:300]}") from None
        except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
            raise OSError(sql.first_line(error)[:300]) from None


def _encodable(text: str) -> str:
    """Half of a surrogate pair, which UTF-8 cannot hold, becomes "?"."""
    return text.encode(errors="replace").decode()
