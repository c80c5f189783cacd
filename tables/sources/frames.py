"""Rows of the data frames of a program, none of whose libraries is imported for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tables.base import sql
from tables.base.errors import TableError

BATCH_ROWS = 1000


def frame_rows(frame: Any) -> Iterator[dict[str, Any]] | None:
    """Reads a frame once, in constant memory; None if it is none.

    pandas gives its rows itself, without its index; others, such as Polars, PyArrow and DuckDB, give a stream
    of the Arrow C interface. The rows raise TableError.
    """
    if callable(getattr(frame, "itertuples", None)):
        return _named(frame.columns, frame.itertuples(index=False, name=None))
    if hasattr(frame, "__arrow_c_stream__") and (hasattr(frame, "columns") or hasattr(frame, "schema")):
        return _streamed(frame)  # what has neither is one column, which is iterated over
    if callable(getattr(frame, "collect", None)):
        raise TableError(f"a {type(frame).__name__} has no rows yet: call collect() on it")
    return None


def _named(columns: Iterable[Any], rows: Iterable[Sequence[Any]]) -> Iterator[dict[str, Any]]:
    names = [str(column) for column in columns]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise TableError(f"{names.count(twice[0])} columns have the name {twice[0]!r}: rename all but one")
    for values in rows:
        yield dict(zip(names, values, strict=True))


def _streamed(frame: Any) -> Iterator[dict[str, Any]]:
    import duckdb

    _check_no_pointers(getattr(frame, "schema", None))
    try:
        stream = frame.__arrow_c_stream__()
    except Exception as error:  # of any library
        raise _unreadable(error) from None
    try:
        with sql.connect() as database:
            database.register("frame", stream)  # DuckDB reads a frame itself with PyArrow alone
            rows = database.execute("FROM frame")
            names = [name for name, *_ in rows.description]
            while batch := rows.fetchmany(BATCH_ROWS):
                yield from _named(names, batch)
    except duckdb.Error as error:
        raise _unreadable(error) from None


def _check_no_pointers(schema: Any) -> None:
    """Polars gives addresses for the Python objects of such a column."""
    for column, kind in schema.items() if isinstance(schema, Mapping) else ():
        if str(kind) == "Object":
            raise TableError(f"the column {column!r} holds Python's objects: make it text or a number")


def _unreadable(error: Exception) -> TableError:
    return TableError(
        f"the data frame cannot be read as an Arrow stream: {sql.first_line(error)[:300]}: "
        "cast such columns to another type, or give dictionaries"
    )
