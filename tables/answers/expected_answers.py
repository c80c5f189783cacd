"""How many rows were answered as their table says: a column expected_NAME has the right value of NAME."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tables.base.values import is_missing, text_of

EXPECTED = "expected_"


class ExpectedAnswers:
    """columns: of the table. answers: the columns of the answer, in the order of their values."""

    def __init__(self, columns: Sequence[str], answers: Sequence[str]) -> None:
        self._places = {
            name: (place, columns.index(EXPECTED + name))
            for place, name in enumerate(answers)
            if EXPECTED + name in columns
        }
        self._rows = self._right = 0
        self._by_column: Counter[str] = Counter()

    def compare(self, row: Sequence[Any], answer: Sequence[Any]) -> None:
        """Values are equal if they are written alike; what is not filled in is not compared."""
        same = {
            name: text_of(answer[place]) == text_of(row[wanted])
            for name, (place, wanted) in self._places.items()
            if not is_missing(row[wanted])
        }
        if same:
            self._rows += 1
            self._right += all(same.values())
            self._by_column.update(name for name, equal in same.items() if equal)

    def text(self) -> str:
        """For a summary; empty if nothing was compared."""
        if not self._rows:
            return ""
        each = ", ".join(f"{name} {self._by_column[name]:,}" for name in self._places)
        return f"{self._right:,} of {self._rows:,} rows" + (f" ({each})" if len(self._places) > 1 else "")
