"""How the next lines of a batch are cut into windows: pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.records.packed_line import Head
from tasks.records.window import NewWindow

MOST_BYTES = 256 * 1024  # of a window with several lines: Redis keeps it, and sends it whole


def cut(lines: Sequence[bytes], heads: Sequence[Head], most: int) -> list[NewWindow]:
    """Windows of lines of one model, at most so many lines each."""
    windows: list[NewWindow] = []
    start, size = 0, 0
    for index, (line, head) in enumerate(zip(lines, heads, strict=True)):
        full = index - start == most or size + len(line) > MOST_BYTES
        if index > start and (full or head.model != heads[start].model):
            windows.append(NewWindow(heads[start].model, lines[start:index]))
            start, size = index, 0
        size += len(line)
    if start < len(lines):
        windows.append(NewWindow(heads[start].model, lines[start:]))
    return windows
