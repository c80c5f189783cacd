"""The book of the KV cache against a cache that really has cells."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.core.kv_cache import KVCache
from engine.core.token_tree import Draft, paths
from tests.engine.core.test_token_tree import bush
from tests.engine.helpers.shadow import ShadowMemory

CAPACITY = 24
IDS = 5
ids = st.integers(0, IDS - 1)
lengths = st.integers(0, CAPACITY)


class BookAgainstCells(RuleBasedStateMachine):
    """Any legal order of operations leaves the book and the cells in agreement."""

    @initialize(ordered=st.booleans())
    def start(self, ordered: bool) -> None:
        self.ordered = ordered
        self.memory = ShadowMemory(CAPACITY)
        self.cache = KVCache(self.memory, CAPACITY, ordered=ordered)

    @rule(seq_id=ids, count=st.integers(0, 8))
    def append(self, seq_id: int, count: int) -> None:
        if count > CAPACITY - self.memory.used:
            with pytest.raises(AssertionError):
                self.cache.append(seq_id, count)
            return
        self.cache.append(seq_id, count)
        self.memory.fill(seq_id, count)

    @rule(source=ids, taker=ids, part=st.integers(0, 100))
    def share(self, source: int, taker: int, part: int) -> None:
        held = self.cache.length(source)
        if held and not self.cache.length(taker):
            self.cache.share(source, taker, 1 + part % held)

    @rule(source=ids, taker=ids, length=st.integers(1, CAPACITY))
    def sharing_more_than_is_held_or_into_what_is_held_is_refused(
        self, source: int, taker: int, length: int
    ) -> None:
        held = self.cache.length(source)
        if held and (self.cache.length(taker) or length > held):
            with pytest.raises(AssertionError):
                self.cache.share(source, taker, length)

    @rule(seq_id=ids, length=lengths)
    def truncate(self, seq_id: int, length: int) -> None:
        expected = min(length, self.cache.length(seq_id))
        self.cache.truncate(seq_id, length)
        assert self.cache.length(seq_id) == expected

    @rule(seq_id=ids)
    def remove(self, seq_id: int) -> None:
        self.cache.remove(seq_id)
        assert self.cache.length(seq_id) == 0

    @rule(empty_first=st.sampled_from([False, False, False, True]))
    def flush(self, empty_first: bool) -> None:
        if not empty_first and any(self.cache.length(seq_id) for seq_id in range(IDS)):
            with pytest.raises(AssertionError):
                self.cache.flush()
            return
        for seq_id in range(IDS):
            self.cache.remove(seq_id)
        self.cache.flush()
        assert self.cache.used == self.cache.retired == self.memory.used == 0

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "memory"):
            return
        assert self.cache.used == self.memory.used
        for seq_id in range(IDS):
            held = self.memory.positions(seq_id)
            assert sorted(held) == list(range(self.cache.length(seq_id)))
            assert held == sorted(held) or not self.ordered, "ordered cells lie in the order of the tokens"
        lying = sum(1 for cell in self.memory.cells if cell.owners and not cell.owners - {-1})
        assert self.cache.retired == lying


TestBookAgainstCells = BookAgainstCells.TestCase
TestBookAgainstCells.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def filled(capacity: int, ordered: bool = False, **lengths: int) -> tuple[KVCache, ShadowMemory]:
    """A cache where sequence 0, 1, .. hold so many cells, appended in this order."""
    memory = ShadowMemory(capacity)
    cache = KVCache(memory, capacity, ordered=ordered)
    for seq_id, length in enumerate(lengths.values()):
        cache.append(seq_id, length)
        memory.fill(seq_id, length)
    return cache, memory


def test_a_shared_cell_is_free_only_when_nobody_holds_it() -> None:
    cache, _ = filled(10, a=6)
    cache.share(0, 1, 4)
    assert (cache.used, cache.length(1)) == (6, 4)
    cache.remove(0)
    assert cache.used == 4
    cache.remove(1)
    assert cache.used == 0


def test_an_unordered_cache_fills_holes_and_an_ordered_one_does_not() -> None:
    """The reason for burying: without it a later token comes to lie before an earlier one."""
    for ordered in (False, True):
        cache, memory = filled(12, ordered, a=3, b=3)
        cache.remove(0)
        cache.append(1, 2)
        memory.fill(1, 2)
        assert (memory.positions(1) == [0, 1, 2, 3, 4]) is ordered
        assert cache.used == memory.used == (8 if ordered else 5)


def test_truncating_to_what_is_there_does_not_touch_the_memory() -> None:
    cache, memory = filled(10, a=4)
    cache.truncate(0, 4)
    cache.truncate(0, 9)
    cache.truncate(3, 0)
    assert memory.calls == []


def test_removing_clears_the_memory_even_where_the_book_knows_no_cell() -> None:
    """A failed decode may have left cells that no sequence counts."""
    cache, memory = filled(10)
    memory.fill(0, 3)
    cache.remove(0)
    assert memory.used == 0


def test_misuse_is_refused_before_the_memory_changes() -> None:
    cache, memory = filled(10, a=4, b=2)
    with pytest.raises(AssertionError, match="fewer cells"):
        cache.share(0, 2, 5)
    with pytest.raises(AssertionError, match="empty sequence"):
        cache.share(0, 1, 2)
    with pytest.raises(AssertionError, match="overflow"):
        cache.append(0, 5)
    with pytest.raises(AssertionError, match="empty cache"):
        cache.flush()
    assert memory.calls == []
    assert (cache.used, cache.length(0), cache.length(1), cache.length(2)) == (6, 4, 2, 0)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_a_rewound_tree_leaves_the_accepted_path(seed: int, ordered: bool) -> None:
    """Several sequences, tree after tree: positions, free cells and leaf ids, beside the shadow memory."""
    rng = random.Random(seed)
    memory = ShadowMemory(300)
    cache = KVCache(memory, 300, ordered=ordered)
    lengths = {0: 10, 1: 3, 2: 25}
    for seq_id, length in lengths.items():
        cache.append(seq_id, length)
        memory.fill(seq_id, length)
    for _ in range(4):
        for seq_id in lengths:
            tree = bush(rng.randrange(1000), rng.randint(1, 8))
            ways = paths(tree)
            draft = Draft(tree, ways, list(range(10, 9 + len(ways))))
            cache.branch(seq_id, draft.leaf_ids)
            cache.append(seq_id, 1 + len(tree))
            memory.fill_tree([seq_id, *draft.leaf_ids], draft.row_ids(seq_id), [n.depth for n in tree])
            lengths[seq_id] += 1
            way = rng.choice(ways)
            accepted = way[: rng.randint(0, len(way))]
            cache.rewind(seq_id, lengths[seq_id], accepted, ways)
            lengths[seq_id] += len(accepted)
            for other, length in lengths.items():
                assert cache.length(other) == length
                assert sorted(memory.positions(other)) == list(range(length))
                if ordered:
                    assert memory.positions(other) == list(range(length)), "in token order"
            assert not any(memory.positions(leaf) for leaf in range(10, 30))
            assert cache.used == memory.used == sum(lengths.values()) + cache.retired
            assert bool(cache.retired) <= ordered


def test_a_sequence_that_goes_takes_its_leaves_along() -> None:
    memory = ShadowMemory(50)
    cache = KVCache(memory, 50)
    cache.append(0, 5)
    memory.fill(0, 5)
    cache.branch(0, [10, 11])
    cache.remove(0)
    assert (cache.used, memory.used) == (0, 0)
