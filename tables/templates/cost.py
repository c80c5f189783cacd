"""The bound on what one rendering may cost, in characters handled.

Text of a row is counted once for each place of the template that could read it, and again for each pass of a
loop; text that an expression makes is counted before it is made, and from then on in each pass. Filters pay
for what they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from tables.base.errors import TableError

MAX_COST = 64_000_000  # about a second
PASS = 64  # of a loop, beside the text
READ = 1 / 16  # of a character that a place could read, to compare, find or cut it


class Cost:
    """places: parts of the template that handle values. size: characters of the row."""

    def __init__(self, places: int, size: int) -> None:
        self._places, self._size, self._spent = places, size, 0
        self._pass()

    def make(self, size: int) -> None:
        """Pay for text that is about to be made."""
        self._size += size
        self.pay(size)

    def loop(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._pass()
            yield item

    def _pass(self) -> None:
        self.pay(PASS + int(READ * self._places * self._size))

    def pay(self, amount: int) -> None:
        """Pay for work that is about to be done. Raises TableError."""
        self._spent += amount
        if self._spent > MAX_COST:
            raise TableError("the template does too much for one row: its loops or its text are too long")


CURRENT: ContextVar[Cost] = ContextVar("cost of the rendering in progress")
