"""The end of a service's start: what it has loaded stays, and whoever waits for it is told.

Readiness is one byte in the pipe whose descriptor is in MEDUSAQ_READY_FD.
"""

from __future__ import annotations

import contextlib
import gc
import os

READY_FD = "MEDUSAQ_READY_FD"


def tell_ready() -> None:
    """Notify once. Does nothing more if the variable is unset or the reader has closed the pipe.

    Objects of the start, which are mostly modules, are exempt from garbage collection from now on: a full
    collection walks them all, which holds every request up for 30 ms and more.
    """
    gc.collect()
    gc.freeze()
    descriptor = os.environ.pop(READY_FD, None)
    if descriptor is not None:
        with contextlib.suppress(OSError, ValueError):
            os.write(int(descriptor), b"1")
            os.close(int(descriptor))
