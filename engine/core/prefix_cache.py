"""Prompt prefixes of ended requests, whose cells stay in the KV cache for later requests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.core.kv_cache import KVCache

Tokens = NDArray[np.int32]
MIN_SHARED = 16  # tokens; below this a shared prefix saves less than the bookkeeping costs


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Number of leading tokens that are equal."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    return int(differs.argmax()) if differs.any() else n


def head(tokens: Tokens) -> bytes:
    """The first MIN_SHARED tokens: prompts with different heads share no prefix worth using."""
    return tokens[:MIN_SHARED].tobytes()


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The prompt of an ended request. seq_id: the sequence that holds its cells."""

    seq_id: int
    tokens: Tokens


class PrefixCache:
    """An LRU cache of prompt prefixes.

    budget: cells that the entries may hold together. Each entry also occupies a sequence id; the scheduler
    calls evict() when it needs ids or cells for a request.
    """

    def __init__(self, cache: KVCache, budget: int) -> None:
        self._cache = cache
        self._budget = budget
        self._entries: OrderedDict[int, CachedPrefix] = OrderedDict()

    def __iter__(self) -> Iterator[CachedPrefix]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def cells(self) -> int:
        return sum(len(entry.tokens) for entry in self._entries.values())

    def touch(self, seq_id: int) -> None:
        """Mark an entry as just used; ignores the ids of running sequences."""
        if seq_id in self._entries:
            self._entries.move_to_end(seq_id)

    def insert(self, seq_id: int, tokens: Tokens) -> list[int]:
        """Keep a sequence's cells of these prompt tokens. Returns the sequence ids that became free."""
        if len(tokens) < MIN_SHARED or len(tokens) > self._budget or self._covered(tokens):
            self._cache.remove(seq_id)
            return [seq_id]
        self._cache.truncate(seq_id, len(tokens))
        self._entries[seq_id] = CachedPrefix(seq_id, tokens)
        freed = []
        while self.cells > self._budget:
            freed.append(self.evict())
        return freed

    def evict(self, spare: int | None = None) -> int:
        """Drop the least recently used entry other than `spare`; returns its sequence id."""
        seq_id = next(s for s in self._entries if s != spare)
        del self._entries[seq_id]
        self._cache.remove(seq_id)
        return seq_id

    def clear(self) -> list[int]:
        """Drop every entry; returns their sequence ids."""
        return [self.evict() for _ in tuple(self._entries)]

    def _covered(self, tokens: Tokens) -> bool:
        key = head(tokens)
        return any(
            head(entry.tokens) == key and common_prefix(entry.tokens, tokens) == len(tokens) for entry in self
        )
