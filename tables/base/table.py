"""The interface of a table that can be read again and again, row by row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tables.base.errors import TableError

MAX_COLUMNS = 4096
TEXT_TYPE = "VARCHAR"


class Row(NamedTuple):
    """number: from 1, without the header. values: one for each column; None is missing."""

    number: int
    values: tuple[Any, ...]


class Table(ABC):
    """description: one line on the format, with what was guessed. Reading takes constant memory."""

    columns: tuple[str, ...]
    description: str

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """Read from the start. Raises TableError, also in the middle."""

    def exact_rows(self) -> Iterator[Row]:
        """As rows(), for a writer that keeps the types: see sql.carrier()."""
        return self.rows()

    def types(self) -> Mapping[str, str]:
        """The SQL type of each column; text where the format has no types."""
        return dict.fromkeys(self.columns, TEXT_TYPE)


def checked_columns(names: Sequence[str], name: str) -> tuple[str, ...]:
    """The names of the columns. Raises TableError if they cannot be told apart, or are too many."""
    if len(names) > MAX_COLUMNS:
        raise TableError(f"{name}: has {len(names):,} columns; at most {MAX_COLUMNS:,} are possible")
    for number, column in enumerate(names, 1):
        if not column:
            raise TableError(f"{name}: column {number} has no name in the header")
    twice = [column for column, count in Counter(names).items() if count > 1]
    if twice:
        raise TableError(f"{name}: {names.count(twice[0])} columns have the name {twice[0]!r}")
    return tuple(names)


class ObservedTypes:
    """Finds the SQL type of each column of a format whose values have types, by looking at all values."""

    def __init__(self) -> None:
        self._seen: dict[str, set[str]] = {}

    def add(self, column: str, value: object) -> None:
        if value is not None:
            self._seen.setdefault(column, set()).add(_type(value))

    def types(self, columns: Sequence[str]) -> dict[str, str]:
        return {column: _common(self._seen.get(column, set())) for column in columns}


def _type(value: object) -> str:
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if -(2**63) <= value < 2**63 else TEXT_TYPE
    if isinstance(value, float):
        return "DOUBLE"
    return {"datetime": "TIMESTAMP", "date": "DATE", "time": "TIME"}.get(type(value).__name__, TEXT_TYPE)


def _common(types: set[str]) -> str:
    if len(types) == 1:
        return next(iter(types))
    return "DOUBLE" if types == {"BIGINT", "DOUBLE"} else TEXT_TYPE
