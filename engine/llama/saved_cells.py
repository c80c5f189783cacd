"""Cells of one sequence outside a context, in llama.cpp's format of sequence states.

The format: [magic u32][sequence id u32][streams u32], then for each stream the number of its cells (u32) and,
where that is not 0, the cells. A sequence lies in one stream, so the states of contexts with different
numbers of streams differ by zero counts alone. It is llama.cpp's private format: engine/core/layouts.py tries
the conversion when a model is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

HEADER_BYTES = 12
COUNT_BYTES = 4


@dataclass(frozen=True, slots=True)
class SavedCells:
    """state: as llama.cpp wrote it. streams: of the context. stream: the one with the cells."""

    state: NDArray[np.uint8]
    streams: int
    stream: int

    @property
    def nbytes(self) -> int:
        return len(self.state)

    def for_streams(self, streams: int) -> NDArray[np.uint8]:
        """The state as a context with so many streams reads it, whichever the sequence's stream is there."""
        if streams == self.streams:
            return self.state
        first = HEADER_BYTES + COUNT_BYTES * self.stream
        end = len(self.state) - COUNT_BYTES * (self.streams - 1 - self.stream)
        header = self.state[:HEADER_BYTES].copy()
        header[8:] = np.array([streams], dtype=np.uint32).view(np.uint8)
        others = np.zeros(COUNT_BYTES * (streams - 1), dtype=np.uint8)
        return np.concatenate([header, self.state[first:end], others])
