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
    """Structs and maps are dicts, lists are lists. Types that Python lacks, such as UUIDs, are text."""

    def __init__(self, path: Path, name: str) -> None:
        import duckdb

        self._path, self._name = path, name
        self._types: dict[str, str] = {}
        self._read_as: dict[str, str] = {}  # the SQL types of values in templates
        self._check_whole()
        try:
            with sql.connect() as database:
                found = database.sql(f"SELECT * FROM {self._file()}")
                self.columns = checked_columns(found.columns, name)
                for column, kind in zip(found.columns, found.types, strict=True):
                    self._types[column] = str(kind)
                    self._read_as[column] = sql.python_type(kind)
        except duckdb.Error as error:
            raise self._damaged(error) from None
        self.description = "Parquet"

    def rows(self) -> Iterator[Row]:
        return self._rows(self._read_as)

    def exact_rows(self) -> Iterator[Row]:
        return self._rows({column: sql.carrier(kind) for column, kind in self._types.items()})

    def _rows(self, read_as: Mapping[str, str]) -> Iterator[Row]:
        import duckdb

        fields = ", ".join(
            sql.quoted(column) + (f"::{kind}" if kind != self._types[column] else "")
            for column, kind in read_as.items()
        )
        number = 0
        try:
            with sql.connect() as database:
                cursor = database.execute(f"SELECT {fields} FROM {self._file()}")
                while batch := cursor.fetchmany(BATCH_ROWS):
                    for values in batch:
                        number += 1
                        yield Row(number, values)
        except duckdb.Error as error:
            raise self._damaged(error) from None

    def types(self) -> Mapping[str, str]:
        return self._types

    def _file(self) -> str:
        return f"read_parquet({sql.literal(glob.escape(str(self._path)))})"

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
