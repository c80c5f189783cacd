"""The reader of tables for `run` and `validate`: renders the prompt of each row."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from cli.base.errors import BadInput, table_errors
from cli.prompts.custom_id_index import CustomIdIndex
from cli.prompts.prompt_reader import PromptLine, ReadOptions, checked_id, completed
from common.unicode import is_unicode
from tables.base.errors import TableError
from tables.base.table import Row, Table
from tables.base.values import text_of
from tables.templates.template import Template, unknown_column
from tasks.schema.job_request import HALF_PAIR, Problem, job_problems

DEFAULT_COLUMN = "prompt"
ID_COLUMN = "custom_id"
BAD_TEMPLATE = "template_failed"


class RowReader:
    """Reads a table with the prompts that options make of it. Raises BadInput for columns that it lacks."""

    def __init__(self, table: Table, options: ReadOptions) -> None:
        self._table = table
        self._options = options
        self._prompt = _template(options.template, "--template") or Template.of_column(
            _column(table, options)
        )
        self._system = _template(options.system, "--system")
        self._id = options.id_column or (ID_COLUMN if ID_COLUMN in table.columns else None)
        for option, template in (("--template", self._prompt), ("--system", self._system)):
            if template is not None:
                _check(template, table.columns, option)
        if self._id is not None and self._id not in table.columns:
            raise BadInput(f"--id: {unknown_column(self._id, table.columns)}")

    def read(self) -> Iterator[PromptLine]:
        """The rows as lines, numbered from 1. Raises BadInput."""
        with contextlib.closing(CustomIdIndex()) as seen, table_errors():
            for index, row in enumerate(islice(self._table.rows(), self._options.limit)):
                yield self._line(index, row, seen)

    def missing(self) -> dict[str, int]:
        """How often columns that the templates use were empty, among the rows that were read."""
        return dict(self._prompt.missing | (self._system.missing if self._system is not None else {}))

    def _line(self, index: int, row: Row, seen: CustomIdIndex) -> PromptLine:
        values = dict(zip(self._table.columns, row.values, strict=True))
        problems: list[Problem] = []
        given = None if self._id is None else text_of(values[self._id])
        custom_id = checked_id(given, row.number, problems, seen, "row")
        job = self._job(values, problems)
        return PromptLine(index, row.number, custom_id, {} if problems else job, tuple(problems))

    def _job(self, values: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
        try:
            prompt = self._prompt.render(values)
            system = None if self._system is None else self._system.render(values)
        except TableError as error:
            problems.append(Problem(str(error), code=BAD_TEMPLATE))
            return {}
        if not is_unicode([prompt, system]):
            problems.append(Problem(HALF_PAIR, "prompt"))
            return {}
        if not prompt.strip():
            problems.append(Problem("empty", "prompt"))
            return {}
        job = completed({"prompt": prompt}, self._options, system)
        problems += job_problems(job)
        return job


def _template(source: str | None, option: str) -> Template | None:
    try:
        return None if source is None else Template(source)
    except TableError as error:
        raise BadInput(f"{option}: {error}") from None


def _check(template: Template, columns: Sequence[str], option: str) -> None:
    try:
        template.check(columns)
    except TableError as error:
        raise BadInput(f"{option}: {error}") from None


def _column(table: Table, options: ReadOptions) -> str:
    """The only column that the prompt is made of."""
    if options.column is None:
        if len(table.columns) == 1:
            return table.columns[0]
        if DEFAULT_COLUMN in table.columns:
            return DEFAULT_COLUMN
        columns = ", ".join(map(repr, table.columns))
        raise BadInput(f"the columns are {columns}: say with --template or --column what to send")
    if options.column not in table.columns:
        raise BadInput(f"--column: {unknown_column(options.column, table.columns)}")
    return options.column
