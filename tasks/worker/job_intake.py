"""Counts the jobs that a model worker has read, so that it reads no more than it runs at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class JobIntake:
    """Jobs between the reading of their message and their end in this process.

    Celery's prefetch count cannot bound them: its places are for windows of batch lines, too.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._arrived: set[str] = set()  # and not begun
        self._running: set[str] = set()

    def arrived(self, job_id: str) -> None:
        """A message of this job was read."""
        with self._lock:
            self._arrived.add(job_id)

    def reconnected(self) -> None:
        """Messages that were read before, and whose jobs did not begin, will come again."""
        with self._lock:
            self._arrived.clear()

    @contextlib.contextmanager
    def running(self, job_id: str) -> Iterator[None]:
        """While its task runs."""
        with self._lock:
            self._arrived.discard(job_id)
            self._running.add(job_id)
        try:
            yield
        finally:
            with self._lock:
                self._running.discard(job_id)

    def wants(self) -> bool:
        """Whether to read another job."""
        with self._lock:
            return len(self._arrived) + len(self._running) < self._most
