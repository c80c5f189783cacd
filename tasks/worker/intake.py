"""Counts the work that a model worker has read, so that it reads no more jobs than it runs at once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

BEGIN_S = 10.0  # in which work begins after its message was read; what Celery refuses never does


class Arrivals:
    """Jobs or windows whose message was read, and that have not begun. For use under a lock."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def add(self, work_id: str) -> None:
        self._since[work_id] = time.monotonic()

    def discard(self, work_id: str) -> None:
        self._since.pop(work_id, None)

    def clear(self) -> None:
        """After a new connection: Celery forgets what has not begun, and the reconciler sends it again."""
        self._since.clear()

    def __len__(self) -> int:
        limit = time.monotonic() - BEGIN_S
        self._since = {work_id: since for work_id, since in self._since.items() if since > limit}
        return len(self._since)


class JobIntake:
    """Jobs between the reading of their message and their end in this process.

    Celery's prefetch count cannot bound them: its places are for windows of batch lines, too.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._arrived = Arrivals()
        self._running: set[str] = set()

    def arrived(self, job_id: str) -> None:
        """A message of this job was read."""
        with self._lock:
            self._arrived.add(job_id)

    def reconnected(self) -> None:
        """What was read before and has not begun is forgotten: the reconciler sends it again."""
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
