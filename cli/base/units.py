"""Human-readable quantities and texts."""

from __future__ import annotations

SHOWN_CHARS = 160  # of a text: two lines of a terminal


def size(count: float) -> str:
    """A number of bytes with a decimal unit."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def shortened(text: str) -> str:
    """On one line, and not too long."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARS else f"{line[:SHOWN_CHARS]} ..."
