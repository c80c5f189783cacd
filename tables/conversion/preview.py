"""The first rows of a table, and the requests that a template makes of them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, TextIO

from tables.base.table import Row, Table
from tables.base.values import text_of
from tables.conversion.options import TableOptions, Wanted
from tables.conversion.request_lines import LineLimits, RowRequests, TableRefused

MAX_CELL = 500  # characters of a value that is shown
COUNT_S = 1.5  # of processor time, so that a preview ends within its first turn: seats.TURN_S
OBJECT = "batch.preview"


def write_preview(
    table: Table, options: TableOptions, url: str, wanted: Wanted, limits: LineLimits, out: TextIO
) -> None:
    """Write one JSON object. Without a template there are no requests. Raises TableError."""
    rows = table.rows()
    first = list(islice(rows, wanted.rows))
    if not first:
        raise TableRefused("empty_file", "the table holds no row")
    made: list[dict[str, Any]] = []
    if options.template:
        requests = RowRequests(table, options, url)
        made = [_shown(requests.line(row, limits.line_bytes)) for row in first]
    count = _counted(rows, len(first), limits.rows) if wanted.count else None
    shown = {
        "object": OBJECT,
        "description": table.description,
        "columns": [*table.columns],
        "rows": [_cells(row) for row in first],
        "row_count": count,
        "requests": made,
    }
    json.dump(shown, out, allow_nan=False)


def _counted(rest: Iterator[Row], count: int, most: int) -> int | None:
    """Read the other rows. count: of those read before. None where there is no time to read all."""
    until = time.process_time() + COUNT_S
    for _ in rest:
        if time.process_time() > until:
            return None
        count += 1
        if count > most:
            raise TableRefused("too_many_tasks", f"the table holds more than {most:,} rows")
    return count


def _shown(line: bytes) -> dict[str, Any]:
    found: Mapping[str, Any] | list[str] = json.loads(line)
    if isinstance(found, list):
        custom_id, code, message = found
        return {"custom_id": custom_id, "body": None, "error": {"code": code, "message": message}}
    return {"custom_id": found["custom_id"], "body": found["body"], "error": None}


def _cells(row: Row) -> list[Any]:
    return [_cell(value) for value in row.values]


def _cell(value: Any) -> Any:
    """Numbers and truth values as they are, anything else as text."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    text = text_of(value)
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…"
