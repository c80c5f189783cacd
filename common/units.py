"""Human-readable quantities."""

from __future__ import annotations


def size(count: float) -> str:
    """A number of bytes with a decimal unit."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
