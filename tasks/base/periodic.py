"""Calls a function again and again, on a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Periodic:
    """Start once with start(), end with stop(). After an exception, which is logged, the next call comes."""

    def __init__(self, name: str, seconds: float, call: Callable[[], object]) -> None:
        """seconds: from the end of a call to the begin of the next, whatever becomes of the time of day."""
        self._seconds, self._call = seconds, call
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def start(self) -> None:
        """The first call comes at once."""
        self._thread.start()

    def stop(self) -> None:
        """Wait for a call that is under way; no other follows."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _loop(self) -> None:
        while not self._stopping.is_set():
            try:
                self._call()
            except Exception:  # this thread must outlive anything
                log.exception("%s failed", self._thread.name)
            self._stopping.wait(self._seconds)
