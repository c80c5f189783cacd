"""Joins a table with the results of its rows, and writes both as a table."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from tables.answers.answer_columns import AnswerColumns, parse_answer
from tables.answers.schema import check_schema
from tables.base.table import Table
from tables.conversion.options import TableOptions
from tables.targets.create_table import create_table


def write_output(table: Table, options: TableOptions, results: Sequence[BinaryIO], path: Path) -> None:
    """The rows that have a result, in their order. results: files of batch output in the order of lines.

    The ending of the path tells the format. Raises TableError, and OSError as of a full disk.
    """
    kept = [*(table.columns if options.columns is None else options.columns)]
    positions = [table.columns.index(column) for column in kept]
    schema = None if options.schema is None else check_schema(options.schema, "schema")
    added = AnswerColumns(kept, schema)
    types = table.types() if path.suffix == ".parquet" else {}
    types = {column: kind for column, kind in types.items() if column in kept}
    numbered = heapq.merge(*map(_numbered, results), key=lambda found: found[0])
    with create_table(path, [*kept, *added.names], types={**types, **added.types}) as out:
        rows = table.rows()
        for number, result in numbered:
            row = next(row for row in rows if row.number == number)
            values, _ = added.values(parse_answer(result))
            out.write([*(row.values[position] for position in positions), *values])


def _numbered(lines: BinaryIO) -> Iterator[tuple[int, dict[str, Any]]]:
    """Results with the numbers of their lines, in which their ids end; a line is a row."""
    for line in lines:
        result = json.loads(line)
        yield int(result["id"].rpartition("-")[2]), result
