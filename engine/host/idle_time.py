"""The time in which the engine has no request: another thread may then compute, a piece at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

# Entered around each piece of work that must not overlap with requests; nullcontext where none come.
Piece = Callable[[], AbstractContextManager[None]]


class Stopped(Exception):
    """There will be no idle time any more."""


class IdleTime:
    """Shared by the engine's thread, which gives idle time, and a thread that uses it.

    A request that arrives waits for the end of the piece under way, and no further one begins.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._given = self._lent = self._used = self._closed = False
        self._wanted = 0

    @contextmanager
    def piece(self) -> Iterator[None]:
        """Begins when there is idle time. Raises Stopped once this is closed."""
        with self._changed:
            self._wanted += 1
            self._changed.wait_for(lambda: self._given or self._lent or self._closed)
            self._wanted -= 1
            if self._closed:
                raise Stopped
            self._used, self._lent = True, False
        try:
            yield
        finally:
            with self._changed:
                self._used = False
                self._changed.notify_all()

    @contextmanager
    def given(self) -> Iterator[None]:
        """Pieces may begin in this block; it ends when none is under way."""
        self._give(True)
        try:
            yield
        finally:
            self._give(False)

    def _give(self, given: bool) -> None:
        with self._changed:
            self._given = given
            self._changed.notify_all()
            self._changed.wait_for(lambda: given or not self._used)

    def lend(self) -> None:
        """Let one piece run now, if one waits."""
        with self._changed:
            self._lent = self._wanted > 0
            self._changed.notify_all()
            self._changed.wait_for(lambda: not (self._lent or self._used) or self._closed)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
