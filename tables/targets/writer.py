"""The interface of writers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any


class TableWriter(ABC):
    """A context manager. cut: values that were shortened, since the format cannot hold them whole."""

    cut = 0

    def __enter__(self) -> TableWriter:
        return self

    @abstractmethod
    def write(self, values: Sequence[Any]) -> None:
        """Write a row, one value for each column. Raises TableError, and OSError as of a full disk."""

    @abstractmethod
    def finish(self) -> None:
        """Write what is left. Called once, after the last row."""

    @abstractmethod
    def release(self) -> None:
        """Close everything; called in any case."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.release()
