"""The one exception of this package."""

from __future__ import annotations


class TableError(Exception):
    """The message is one line that says what is wrong, and where."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
