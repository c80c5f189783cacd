"""A process that is held by more than its number, which the system gives to another one once it has ended."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Self


class HeldProcess:
    """Whoever has the number now: look whether it is the one meant only then. Signals reach no other.

    Where the system has no pidfd, as all but Linux, it is held by its number alone.
    """

    def __init__(self, pid: int) -> None:
        """Raises ProcessLookupError."""
        self.pid = pid
        has_pidfd = hasattr(os, "pidfd_open")
        self._pidfd = os.fdopen(os.pidfd_open(pid), "rb", buffering=0) if has_pidfd else None
        if self._pidfd is None:
            os.kill(pid, 0)

    def send_signal(self, signum: int) -> None:
        """Without effect on a process that has ended."""
        with suppress(ProcessLookupError):
            if self._pidfd is None:
                os.kill(self.pid, signum)
            else:
                signal.pidfd_send_signal(self._pidfd.fileno(), signum)

    def close(self) -> None:
        if self._pidfd is not None:
            self._pidfd.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
