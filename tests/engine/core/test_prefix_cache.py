"""Kept prompts: what is kept, what goes first, and that cells and ids are given back."""

from __future__ import annotations

import numpy as np
import pytest

from engine.core.kv_cache import KVCache
from engine.core.prefix_cache import MIN_SHARED, PrefixCache, common_prefix, head
from engine.llama.model import Tokens
from tests.engine.helpers.shadow import ShadowMemory

LONG = MIN_SHARED + 4


def tokens(*values: int) -> Tokens:
    return np.array(values, dtype=np.int32)


def prompt(word: int, length: int = LONG) -> Tokens:
    return np.full(length, word, dtype=np.int32)


class Shelf:
    """A store on a shadow cache, with sequences that hold cells and are then kept."""

    def __init__(self, budget: int, capacity: int = 200) -> None:
        self.memory = ShadowMemory(capacity)
        self.cache = KVCache(self.memory, capacity)
        self.store = PrefixCache(self.cache, budget)

    def keep(self, seq_id: int, kept: Tokens, held: int | None = None) -> list[int]:
        count = len(kept) if held is None else held
        self.cache.append(seq_id, count)
        self.memory.fill(seq_id, count)
        freed = self.store.insert(seq_id, kept)
        assert self.cache.used == self.memory.used == self.store.cells
        return freed

    @property
    def ids(self) -> list[int]:
        return [kept.seq_id for kept in self.store]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((), (), 0),
        ((1, 2), (), 0),
        ((1, 2, 3), (1, 2, 3), 3),
        ((1, 2, 3), (1, 2, 4), 2),
        ((1, 2), (1, 2, 3), 2),
        ((5, 2, 3), (1, 2, 3), 0),
        ((1, 9, 3), (1, 2, 3), 1),
    ],
)
def test_common_prefix(a: tuple[int, ...], b: tuple[int, ...], expected: int) -> None:
    assert common_prefix(tokens(*a), tokens(*b)) == common_prefix(tokens(*b), tokens(*a)) == expected


def test_prompts_meet_by_their_first_tokens_alone() -> None:
    a = np.concatenate([prompt(1, MIN_SHARED), tokens(5)])
    b = np.concatenate([prompt(1, MIN_SHARED), tokens(6, 7)])
    assert head(a) == head(b)
    assert head(a) != head(a[1:])
    assert head(a) != head(a[: MIN_SHARED - 1])


def test_a_kept_prompt_loses_the_cells_of_its_output() -> None:
    shelf = Shelf(budget=100)
    assert shelf.keep(0, prompt(1), held=LONG + 30) == []
    assert shelf.cache.length(0) == LONG
    assert (shelf.ids, len(shelf.store), shelf.store.cells) == ([0], 1, LONG)


@pytest.mark.parametrize(
    ("length", "budget", "kept"),
    [(MIN_SHARED - 1, 100, False), (MIN_SHARED, 100, True), (50, 50, True), (51, 50, False), (20, 0, False)],
)
def test_what_is_too_short_or_over_the_budget_is_given_back(length: int, budget: int, kept: bool) -> None:
    shelf = Shelf(budget)
    assert shelf.keep(0, prompt(1, length)) == ([] if kept else [0])
    assert shelf.cache.used == (length if kept else 0)


def test_what_another_entry_already_covers_is_not_kept_twice() -> None:
    shelf = Shelf(budget=100)
    shelf.keep(0, prompt(1, 30))
    assert shelf.keep(1, prompt(1, 30)) == [1]
    assert shelf.keep(2, prompt(1, 25)) == [2]
    assert shelf.keep(3, prompt(1, 31)) == [], "a longer one is new"
    assert shelf.ids == [0, 3]


def test_the_least_recently_used_goes_first() -> None:
    shelf = Shelf(budget=3 * LONG)
    for seq_id in range(3):
        shelf.keep(seq_id, prompt(seq_id))
    shelf.store.touch(0)
    shelf.store.touch(7)  # not a kept one
    assert shelf.ids == [1, 2, 0]
    assert shelf.keep(3, prompt(3)) == [1]
    assert shelf.ids == [2, 0, 3]


def test_one_long_prompt_may_displace_several() -> None:
    shelf = Shelf(budget=3 * LONG)
    for seq_id in range(3):
        shelf.keep(seq_id, prompt(seq_id))
    assert shelf.keep(3, prompt(3, 2 * LONG)) == [0, 1]
    assert shelf.cache.length(0) == shelf.cache.length(1) == 0


def test_evicting_spares_the_source() -> None:
    shelf = Shelf(budget=100)
    shelf.keep(0, prompt(0))
    shelf.keep(1, prompt(1))
    assert shelf.store.evict(spare=0) == 1
    assert shelf.ids == [0]
    assert shelf.store.evict() == 0
    assert shelf.cache.used == shelf.memory.used == 0


def test_clearing_gives_everything_back() -> None:
    shelf = Shelf(budget=100)
    shelf.keep(4, prompt(0))
    shelf.keep(2, prompt(1))
    assert shelf.store.clear() == [4, 2]
    assert (shelf.ids, shelf.cache.used, shelf.memory.used) == ([], 0, 0)
