"""Lets many in together, or one alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ExclusiveGate:
    """Thread-safe. Who wants to be alone waits until it is empty, and whoever comes later waits behind."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holders = 0
        self._exclusive = 0  # inside, or waiting to be

    @contextmanager
    def acquire(
        self, exclusive: bool, given_up: Callable[[], bool] = lambda: False, timeout_s: float | None = None
    ) -> Iterator[bool]:
        """From when there is room until it is left. False: there was none when the wait was given up.

        given_up is asked at every look_again().
        """
        with self._changed:
            self._exclusive += exclusive

            def can_enter() -> bool:
                return self._holders == 0 if exclusive else self._exclusive == 0

            self._changed.wait_for(lambda: can_enter() or given_up(), timeout_s)
            inside = can_enter()
            self._holders += inside
        try:
            yield inside
        finally:
            with self._changed:
                self._holders -= inside
                self._exclusive -= exclusive
                self._changed.notify_all()

    def recheck(self) -> None:
        """Some of those who wait may have given up."""
        with self._changed:
            self._changed.notify_all()
