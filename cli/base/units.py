"""Human-readable texts and times."""

from __future__ import annotations

from datetime import datetime

SHOWN_CHARS = 160  # of a text: two lines of a terminal


def date_and_time(seconds: float | None) -> str:
    """Local date and time; "-" for none."""
    return "-" if seconds is None else datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def shortened(text: str) -> str:
    """On one line, and not too long."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARS else f"{line[:SHOWN_CHARS]} ..."
