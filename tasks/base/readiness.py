"""Readiness notification: a service writes one byte to the pipe whose descriptor is in MEDUSAQ_READY_FD."""

from __future__ import annotations

import contextlib
import os

READY_FD = "MEDUSAQ_READY_FD"


def tell_ready() -> None:
    """Notify once. Does nothing if the variable is unset or the reader has closed the pipe."""
    descriptor = os.environ.pop(READY_FD, None)
    if descriptor is not None:
        with contextlib.suppress(OSError, ValueError):
            os.write(int(descriptor), b"1")
            os.close(int(descriptor))
