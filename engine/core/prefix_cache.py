"""Which sequence has the longest common prefix with a prompt, among running and just-ended ones."""

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
    """Key under which prompts that may share a prefix meet."""
    return tokens[:MIN_SHARED].tobytes()


@dataclass(frozen=True, slots=True)
class Kept:
    """Cells of an ended request that the next one with the same prefix can use."""

    seq_id: int
    tokens: Tokens


class PrefixStore:
    """Prompts of ended requests whose cells stay in the cache, least recently used first out.

    `budget` bounds the cells they may hold; every sequence id they hold is one less for requests,
    so whoever needs ids or cells calls evict().
    """

    def __init__(self, cache: KVCache, budget: int) -> None:
        self._cache = cache
        self._budget = budget
        self._kept: OrderedDict[int, Kept] = OrderedDict()

    def __iter__(self) -> Iterator[Kept]:
        return iter(self._kept.values())

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def cells(self) -> int:
        return sum(len(kept.tokens) for kept in self._kept.values())

    def touch(self, seq_id: int) -> None:
        """Note that this sequence's cells were used, if they are kept ones."""
        if seq_id in self._kept:
            self._kept.move_to_end(seq_id)

    def keep(self, seq_id: int, tokens: Tokens) -> list[int]:
        """Keep the cells of these prompt tokens under their sequence id; returns ids freed instead."""
        if len(tokens) < MIN_SHARED or len(tokens) > self._budget or self._covered(tokens):
            self._cache.remove(seq_id)
            return [seq_id]
        self._cache.truncate(seq_id, len(tokens))
        self._kept[seq_id] = Kept(seq_id, tokens)
        freed = []
        while self.cells > self._budget:
            freed.append(self.evict())
        return freed

    def evict(self, spare: int | None = None) -> int:
        """Drop the least recently used entry other than `spare`; returns its sequence id."""
        seq_id = next(s for s in self._kept if s != spare)
        del self._kept[seq_id]
        self._cache.remove(seq_id)
        return seq_id

    def clear(self) -> list[int]:
        """Drop every entry; returns their sequence ids."""
        return [self.evict() for _ in tuple(self._kept)]

    def _covered(self, tokens: Tokens) -> bool:
        key = head(tokens)
        return any(head(k.tokens) == key and common_prefix(k.tokens, tokens) == len(tokens) for k in self)
