"""Lets many in together, or one alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Room:
    """Thread-safe. Who wants to be alone waits until it is empty, and whoever comes later waits behind."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._lonely = 0  # inside, or waiting to be

    @contextmanager
    def entered(
        self, alone: bool, given_up: Callable[[], bool] = lambda: False, timeout_s: float | None = None
    ) -> Iterator[bool]:
        """From when there is room until it is left. False: there was none when the wait was given up.

        given_up is asked at every look_again().
        """
        with self._changed:
            self._lonely += alone

            def has_room() -> bool:
                return self._inside == 0 if alone else self._lonely == 0

            self._changed.wait_for(lambda: has_room() or given_up(), timeout_s)
            inside = has_room()
            self._inside += inside
        try:
            yield inside
        finally:
            with self._changed:
                self._inside -= inside
                self._lonely -= alone
                self._changed.notify_all()

    def look_again(self) -> None:
        """Some of those who wait may have given up."""
        with self._changed:
            self._changed.notify_all()
