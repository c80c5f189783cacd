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
from tables.answers.schema import AnswerSchema
from tables.base.errors import TableError
from tables.base.table import Table
from tables.conversion.output_table import OutputTable

MISFIT = "invalid_answer"  # the error code of an answer that does not fit the schema


class TableResults:
    """A sink of result lines. sha256: of the input that was sent, which must not have changed since."""

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
        self.output = OutputTable(table, schema, usage=usage, safe_csv=safe_csv)
        self._source, self._sha256, self._scratch = source, sha256, scratch

    def check(self, results: Path) -> None:
        """Raise BadInput if the table could not be written under this name."""
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder, table_errors():
            self.output.create(Path(folder) / "check", results.name, self._scratch).release()

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
                rows = self.output.rows(results.name)
                with self.output.opened(part, results.name, self._scratch) as out:

                    def write(result: Mapping[str, Any]) -> Mapping[str, Any]:
                        misfit = out.write(next(rows), result)
                        return (
                            result
                            if misfit is None
                            else {**result, "error": {"code": MISFIT, "message": misfit}}
                        )

                    yield write
        except TableError as error:
            raise CliError(str(error)) from None
