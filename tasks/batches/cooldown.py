"""Keeps one batch's trouble from the others: what met an error rests for a while, then it is tried again."""

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
    """Thread-safe."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}  # what -> when it is tried again, on the monotonic clock

    def attempt(self, what: str, work: Callable[[], T]) -> T | None:
        """What the work gives; None where it met an error now or a moment ago.

        Raises LeadLost and StoreUnavailable, which concern everything.
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
