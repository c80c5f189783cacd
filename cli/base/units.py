"""Amounts as a person reads them."""

from __future__ import annotations


def size(count: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
