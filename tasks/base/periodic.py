"""Calls a function periodically on its own thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Periodic:
    """Runs from start(), which may be called once, to stop(). Exceptions are logged and do not end it."""

    def __init__(self, name: str, seconds: float, call: Callable[[], object]) -> None:
        """seconds: pause between the end of a call and the begin of the next, on the monotonic clock."""
        self._seconds, self._call = seconds, call
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, which makes the first call at once."""
        self._thread.start()

    def stop(self) -> None:
        """End the loop, and wait for a call that is running."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _loop(self) -> None:
        while not self._stopping.is_set():
            try:
                self._call()
            except Exception:  # no error may end this thread
                log.exception("%s failed", self._thread.name)
            self._stopping.wait(self._seconds)
