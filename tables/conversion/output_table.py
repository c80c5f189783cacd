"""Joins a table with the results of its rows, and writes both as a table."""

from __future__ import annotations

import contextlib
import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from tables.answers.answer_columns import AnswerColumns, parse_answer
from tables.answers.expected_answers import ExpectedAnswers
from tables.answers.schema import AnswerSchema
from tables.base.kinds import Kind, output_kind
from tables.base.table import Row, Table
from tables.targets.create_table import create_table
from tables.targets.writer import TableWriter


class OutputTable:
    """The columns of a table, followed by those of the answers.

    columns: of the table that are kept; None is all. cut: values that the format could not hold whole, at the
    end. expected: counts the rows that are answered as the table says.
    """

    def __init__(
        self,
        table: Table,
        schema: AnswerSchema | None,
        *,
        columns: Sequence[str] | None = None,
        usage: bool = False,
        safe_csv: bool = False,
        extras: Sequence[str] = (),
    ) -> None:
        self._table, self._safe_csv = table, safe_csv
        self._kept = [*(table.columns if columns is None else columns)]
        self._positions = [table.columns.index(column) for column in self._kept]
        self.answers = AnswerColumns(self._kept, schema, usage=usage, extras=extras)
        self.expected = ExpectedAnswers(table.columns, self.answers.columns)
        self.cut = 0

    def create(self, path: Path, name: str | None = None, scratch: Path | None = None) -> TableWriter:
        """As create_table, with these columns."""
        types = self._table.types() if _keeps_types(name or path.name) else {}
        return create_table(
            path,
            [*self._kept, *self.answers.names],
            name=name,
            types={
                **{column: types[column] for column in self._kept if column in types},
                **self.answers.types,
            },
            safe_csv=self._safe_csv,
            scratch=scratch,
        )

    def rows(self, name: str) -> Iterator[Row]:
        """The rows of the table, as an output of this name takes them."""
        return self._table.exact_rows() if _keeps_types(name) else self._table.rows()

    @contextlib.contextmanager
    def opened(self, path: Path, name: str | None = None, scratch: Path | None = None) -> Iterator[RowWriter]:
        """The path is complete at the end. Raises TableError, and OSError as of a full disk."""
        with self.create(path, name, scratch) as writer:
            yield RowWriter(writer, self.answers, self.expected, self._positions)
        self.cut = writer.cut


def _keeps_types(name: str) -> bool:
    return output_kind(name) is Kind.PARQUET


class RowWriter:
    def __init__(
        self,
        writer: TableWriter,
        answers: AnswerColumns,
        expected: ExpectedAnswers,
        positions: Sequence[int],
    ) -> None:
        self._writer, self._answers, self._expected, self._positions = writer, answers, expected, positions

    def write(self, row: Row, result: Mapping[str, Any]) -> str | None:
        """Write a row beside its line of batch output. Returns what does not fit the schema, or None."""
        answer = parse_answer(result)
        values, error = self._answers.values(answer)
        self._expected.compare(row.values, values)
        self._writer.write([*(row.values[position] for position in self._positions), *values])
        return None if error == answer.error else error


def write_numbered(rows: Iterator[Row], results: Sequence[BinaryIO], out: RowWriter) -> None:
    """Write the rows that have a result. results: files of batch output, each in the order of the rows."""
    for number, result in heapq.merge(*map(_numbered, results), key=lambda found: found[0]):
        out.write(next(row for row in rows if row.number == number), result)


def _numbered(lines: BinaryIO) -> Iterator[tuple[int, dict[str, Any]]]:
    """Results with the numbers of their lines, in which their ids end."""
    for line in lines:
        result = json.loads(line)
        yield int(result["id"].rpartition("-")[2]), result
