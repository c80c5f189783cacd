"""Prompt prefixes of ended requests, whose cells are kept in the memory of the host for later requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.core.layouts import Layout
from engine.llama.saved_cells import SavedCells

Tokens = NDArray[np.int32]
MIN_KEPT = 32  # tokens; saving the cells of a prompt takes as long as computing a few of them
MIN_SHARED = 16  # tokens; below this a shared prefix saves less than the bookkeeping costs


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Number of leading tokens that are equal."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    return int(differs.argmax()) if differs.any() else n


def head(tokens: Tokens) -> bytes:
    """The first MIN_SHARED tokens: prompts with different heads share no prefix worth using."""
    return tokens[:MIN_SHARED].tobytes()


@dataclass(slots=True, eq=False)
class CachedPrefix:
    """The cells of a prompt. layout: where they come from. used: whether a request has used them since."""

    tokens: Tokens
    cells: SavedCells
    layout: Layout
    used: bool = False


class PrefixCache:
    """An LRU cache of prompt prefixes. Those that were never used go first: most prompts come once.

    budget: bytes of all cells together; 0 keeps nothing. cell_bytes: of one token. most: tokens of an entry.
    """

    def __init__(self, budget: int, cell_bytes: int = 1) -> None:
        self._budget = budget
        self.most = budget // max(1, cell_bytes)  # a recurrent model has no cells
        self._entries: list[CachedPrefix] = []  # the least recently used first

    def __iter__(self) -> Iterator[CachedPrefix]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        return sum(entry.cells.nbytes for entry in self._entries)

    def longest(self, prompt: Tokens) -> tuple[CachedPrefix | None, int]:
        """The entry with the longest common prefix, and its length."""
        key, best, length = head(prompt), None, 0
        for entry in self._entries:
            if head(entry.tokens) == key and (n := common_prefix(prompt, entry.tokens)) > length:
                best, length = entry, n
        return best, length

    def use(self, entry: CachedPrefix) -> None:
        """Mark an entry as just used."""
        entry.used = True
        self._entries.remove(entry)
        self._entries.append(entry)

    def wants(self, tokens: Tokens) -> bool:
        """Whether these tokens are worth keeping: enough of them are not kept already."""
        return len(tokens) <= self.most and len(tokens) - self.longest(tokens)[1] >= MIN_KEPT

    def insert(self, entry: CachedPrefix) -> None:
        """Keep an entry, in place of what has no room beside it; not one that has no room alone."""
        if entry.cells.nbytes > self._budget:
            return
        self._entries.append(entry)
        while self.nbytes > self._budget:
            unused = (one for one in self._entries if not one.used)
            self._entries.remove(next(unused, self._entries[0]))
