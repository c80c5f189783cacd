"""A service tells whoever started it that it is ready: by a byte to the pipe named in its environment."""

from __future__ import annotations

import contextlib
import os

READY_FD = "MEDUSAQ_READY_FD"


def tell_ready() -> None:
    """Once; nothing where nobody asks, or has gone."""
    descriptor = os.environ.pop(READY_FD, None)
    if descriptor is not None:
        with contextlib.suppress(OSError, ValueError):
            os.write(int(descriptor), b"1")
            os.close(int(descriptor))
