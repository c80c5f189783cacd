"""Parquet files, read in batches by DuckDB."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping
from pathlib import Path

from tables.base import sql
from tables.base.errors import TableError
from tables.base.table import Row, Table, checked_columns

BATCH_ROWS = 1000
MAGIC = b"PAR1"


class ParquetTable(Table):
    def __init__(self, path: Path, name: str) -> None:
        import duckdb

        self._path, self._name = path, name
        self._types: dict[str, str] = {}
        self._check_whole()
        try:
            with sql.connect() as database:
                found = database.execute(f"DESCRIBE {self._select()}").fetchall()
        except duckdb.Error as error:
            raise self._damaged(error) from None
        self.columns = checked_columns([column for column, *_ in found], name)
        self._types = {column: str(kind) for column, kind, *_ in found}
        self.description = "Parquet"

    def rows(self) -> Iterator[Row]:
        import duckdb

        number = 0
        try:
            with sql.connect() as database:
                cursor = database.execute(self._select())
                while batch := cursor.fetchmany(BATCH_ROWS):
                    for values in batch:
                        number += 1
                        yield Row(number, values)
        except duckdb.Error as error:
            raise self._damaged(error) from None

    def types(self) -> Mapping[str, str]:
        return self._types

    def _select(self) -> str:
        fields = ", ".join(
            sql.quoted(column) + ("" if sql.is_exact(kind) else "::VARCHAR")
            for column, kind in self._types.items()
        )
        return f"SELECT {fields or '*'} FROM read_parquet({sql.literal(glob.escape(str(self._path)))})"

    def _check_whole(self) -> None:
        try:
            with self._path.open("rb") as file:
                start = file.read(len(MAGIC))
                file.seek(0, 2)
                size = file.tell()
                file.seek(max(0, size - len(MAGIC)))
                end = file.read()
        except OSError as error:
            raise TableError(f"cannot read {self._name}: {error.strerror}") from None
        if not size:
            raise TableError(f"{self._name}: the file is empty")
        if start != MAGIC:
            raise TableError(f"{self._name}: not a Parquet file")
        if end != MAGIC or size < 2 * len(MAGIC) + 4:
            raise TableError(f"{self._name}: the Parquet file is torn, its end is missing")

    def _damaged(self, error: Exception) -> TableError:
        import duckdb

        if isinstance(error, duckdb.OutOfMemoryException):
            return TableError(
                f"{self._name}: a row group takes more than {sql.READ_MEMORY} of memory: write smaller ones"
            )
        return TableError(f"{self._name}: the Parquet file is damaged: {sql.first_line(error)[:300]}")
