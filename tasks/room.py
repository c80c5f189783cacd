"""Lets many in together, or one alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Room:
    """Thread-safe. Who wants to be alone waits until it is empty, and whoever comes later waits behind."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._lonely = 0  # inside, or waiting to be

    @contextmanager
    def entered(self, alone: bool) -> Iterator[None]:
        """From when there is room until it is left."""
        with self._changed:
            if alone:
                self._lonely += 1
                self._changed.wait_for(lambda: self._inside == 0)
            else:
                self._changed.wait_for(lambda: self._lonely == 0)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._lonely -= alone
                self._changed.notify_all()
