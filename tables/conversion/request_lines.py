"""Writes one line of a batch file for each row of a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from common.json_text import compact
from tables.base.errors import TableError
from tables.base.table import Row, Table
from tables.base.values import text_of
from tables.conversion.options import TableOptions
from tables.templates.template import Template, unknown_column

TEMPLATE_FAILED, EMPTY, LINE_TOO_LONG = "template_failed", "empty_prompt", "line_too_long"


class TableRefused(TableError):
    """A table or a row cannot be used; code: that of its error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class LineLimits:
    """rows: of the table. line_bytes: of one request. bytes: of all requests together."""

    rows: int
    line_bytes: int
    bytes: int


def write_lines(table: Table, options: TableOptions, url: str, limits: LineLimits, out: BinaryIO) -> None:
    """The line of a row is its request, or [custom id, code, message] where that cannot be made.

    Raises TableError, and OSError as of a full disk.
    """
    rows = RowRequests(table, options, url)
    number = written = 0
    for number, row in enumerate(table.rows(), 1):
        if number > limits.rows:
            raise TableRefused("too_many_tasks", f"the table holds more than {limits.rows:,} rows")
        line = rows.line(row, limits.line_bytes)
        written += len(line)
        if written > limits.bytes:
            raise TableRefused(
                "table_too_large",
                f"the requests of the first {number:,} rows have more than {limits.bytes:,} bytes together: "
                "use several tables, or shorter templates",
            )
        out.write(line)
    if not number:
        raise TableRefused("empty_file", "the table holds no row")
    out.flush()


class RowRequests:
    """Makes the lines. Raises TableError for a column that does not exist."""

    def __init__(self, table: Table, options: TableOptions, url: str) -> None:
        self._columns, self._options, self._url = table.columns, options, url
        self._template = Template(options.template)
        self._system = None if options.system is None else Template(options.system)
        for template in (self._template, self._system):
            if template is not None:
                template.check(table.columns)
        for name in (*(options.columns or ()), *([options.id_column] if options.id_column else [])):
            if name not in table.columns:
                raise TableError(unknown_column(name, table.columns))

    def line(self, row: Row, most_bytes: int) -> bytes:
        """See write_lines()."""
        values = dict(zip(self._columns, row.values, strict=True))
        custom_id = str(row.number)
        if self._options.id_column is not None:
            custom_id = text_of(values[self._options.id_column])
        try:
            line = _dumped(self._request(custom_id, values))
        except TableRefused as error:
            return _dumped([custom_id, error.code, str(error)])
        except TableError as error:
            return _dumped([custom_id, TEMPLATE_FAILED, str(error)])
        if len(line) <= most_bytes:
            return line
        return _dumped([custom_id, LINE_TOO_LONG, f"the request is longer than {most_bytes:,} bytes"])

    def _request(self, custom_id: str, values: Mapping[str, Any]) -> dict[str, Any]:
        system = None if self._system is None else self._system.render(values)
        prompt = self._template.render(values)
        if not prompt.strip():
            raise TableRefused(EMPTY, "the prompt of this row is empty")
        body = self._options.request_body(prompt, system)
        return {"custom_id": custom_id, "method": "POST", "url": self._url, "body": body}


def _dumped(value: object) -> bytes:
    """One line of JSON. Half of a surrogate pair, which UTF-8 cannot hold, is escaped."""
    try:
        return compact(value).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"
