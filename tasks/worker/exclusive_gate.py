"""A shared/exclusive gate for threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ExclusiveGate:
    """Shared holders run together; an exclusive one runs alone, and while it waits it blocks newcomers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holders = 0
        self._exclusive = 0  # holding it or waiting for it

    @contextmanager
    def acquire(
        self, exclusive: bool, given_up: Callable[[], bool] = lambda: False, timeout_s: float | None = None
    ) -> Iterator[bool]:
        """Hold the gate. Gives False if the wait was given up or timed out; then it is not held.

        given_up is called at each recheck().
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

    @property
    def exclusive(self) -> bool:
        """Whether somebody has it to himself, or waits for that."""
        with self._changed:
            return self._exclusive > 0

    def try_enter(self, holders: int) -> bool:
        """Hold the gate so many times, shared, unless somebody has it to himself or waits for that."""
        with self._changed:
            if self._exclusive:
                return False
            self._holders += holders
            return True

    def leave(self, holders: int) -> None:
        """After try_enter()."""
        with self._changed:
            self._holders -= holders
            self._changed.notify_all()

    def recheck(self) -> None:
        """Make waiting threads call given_up again."""
        with self._changed:
            self._changed.notify_all()
