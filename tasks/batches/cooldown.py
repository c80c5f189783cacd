"""Skips work that failed for a while before it is tried again, so that one batch does not hold up others."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tasks.base.errors import FileStoreUnavailable, LeadLost, ObjectMissing, StoreUnavailable

log = logging.getLogger(__name__)

T = TypeVar("T")


class Cooldown:
    """Thread-safe. Work is known by a name, such as a batch id."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}  # name -> end of its cooldown, on the monotonic clock

    def attempt(self, what: str, work: Callable[[], T]) -> T | None:
        """Run work and return its result; None if it failed now or is still cooling down.

        Raises LeadLost and StoreUnavailable, which concern every batch. Other errors are logged.
        """
        if self.is_active(what):
            return None
        try:
            return work()
        except (LeadLost, StoreUnavailable):
            self._start(what)
            raise
        except (FileStoreUnavailable, ObjectMissing) as error:
            log.warning("%s waits: %s", what, error)
        except Exception:
            log.exception("%s waits", what)
        self._start(what)
        return None

    def is_active(self, what: str) -> bool:
        with self._lock:
            return time.monotonic() < self._until.get(what, float("-inf"))

    def _start(self, what: str) -> None:
        now = time.monotonic()
        with self._lock:
            self._until = {other: until for other, until in self._until.items() if until > now}
            self._until[what] = now + self._pause_s
