"""Handles Ctrl-C, SIGTERM and a closed terminal as requests to stop in order."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from cli.base.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """A context manager for the main thread. The first signal requests a stop, further ones hurry it."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self._first: list[Callable[[], object]] = []
        self._further: list[Callable[[], object]] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for signum in SIGNALS:
            if signal.getsignal(signum) is signal.SIG_IGN:
                continue  # as nohup wants it
            self._before[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def requested(self) -> bool:
        return self.signum is not None

    def wait(self, seconds: float) -> bool:
        """Sleep, and return whether a signal came. Not an Event: setting one in a handler may deadlock."""
        time.sleep(0 if self.requested() else seconds)
        return self.requested()

    def on_first(self, hook: Callable[[], object]) -> None:
        """Add a hook for the first signal. It runs in the main thread, within the signal handler."""
        self._first.append(hook)

    def on_further(self, hook: Callable[[], object]) -> None:
        self._further.append(hook)

    def error(self, message: str) -> Interrupted:
        return Interrupted(message, self.signum or signal.SIGINT)

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        hooks = self._first if self.signum is None else self._further
        self.signum = self.signum or signum
        for hook in hooks:
            hook()
