"""How a command that measures ends early."""

from __future__ import annotations

import signal
import sys

STOPPED = 128 + signal.SIGTERM  # exit code


def clean_up_on_sigterm() -> None:
    """From now on SIGTERM ends this process as an exception does: what was started and written goes too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))
