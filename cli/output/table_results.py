"""Writes the results of a table as a table: its columns, then those of the answers."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cli.base.errors import CliError, table_errors
from cli.prompts.source import Source
from common.atomic_write import atomic_path
from tables.answers.answer_columns import AnswerColumns, parse_answer
from tables.answers.schema import AnswerSchema
from tables.base.errors import TableError
from tables.base.table import Table
from tables.targets.create_table import create_table
from tables.targets.writer import TableWriter

MISFIT = "invalid_answer"  # the error code of an answer that does not fit the schema


class TableResults:
    """A sink of result lines. cut: values that the format could not hold whole, after the end.

    sha256: of the input that was sent, which must not have changed since.
    """

    def __init__(
        self,
        source: Source,
        table: Table,
        sha256: str,
        schema: AnswerSchema | None,
        *,
        usage: bool,
        safe_csv: bool,
        scratch: Path,
    ) -> None:
        self.answers = AnswerColumns(table.columns, schema, usage=usage)
        self.cut = 0
        self._source, self._table, self._sha256 = source, table, sha256
        self._safe_csv, self._scratch = safe_csv, scratch

    def check(self, results: Path) -> None:
        """Raise BadInput if the table could not be written under this name."""
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder, table_errors():
            self._create(Path(folder) / "check", results).release()

    @contextlib.contextmanager
    def __call__(self, results: Path) -> Iterator[Callable[[Mapping[str, Any]], Mapping[str, Any]]]:
        """Call what it yields for each result in order: it returns the result as it counts."""
        if self._source.sha256() != self._sha256:
            raise CliError(
                f"{self._source.name} has changed since it was sent: put it back as it was and repeat the "
                "command, or start over with --fresh"
            )
        try:
            with atomic_path(results, durable=True) as part:
                types = {**self._table.types(), **self.answers.types}
                rows = self._table.rows()
                with self._create(part, results, types) as writer:

                    def write(result: Mapping[str, Any]) -> Mapping[str, Any]:
                        answer = parse_answer(result)
                        values, error = self.answers.values(answer)
                        writer.write([*next(rows).values, *values])
                        if error == answer.error:
                            return result
                        return {**result, "error": {"code": MISFIT, "message": error}}

                    yield write
                self.cut = writer.cut
        except TableError as error:
            raise CliError(str(error)) from None

    def _create(self, path: Path, results: Path, types: Mapping[str, str] | None = None) -> TableWriter:
        return create_table(
            path,
            [*self._table.columns, *self.answers.names],
            name=results.name,
            types=types,
            safe_csv=self._safe_csv,
            scratch=self._scratch,
        )
