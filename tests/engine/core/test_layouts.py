"""The accounting of both layouts against caches that really have cells."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.core.layouts import LANE_SLACK, LaneLayout, Layout, SharedLayout
from engine.core.rows_builder import RowsBuilder
from engine.core.token_tree import EMPTY_DRAFT, Draft, fit, paths
from engine.llama.saved_cells import SavedCells
from tests.engine.core.test_token_tree import bush
from tests.engine.helpers.shadow import ShadowContext

CAPACITY = 40  # tokens of the shared cache
LANE = 20  # tokens of a lane
IDS = 4
LEAF_IDS = range(IDS, IDS + 3)


def shared_layout(capacity: int = CAPACITY, *, alone: bool = False) -> tuple[SharedLayout, ShadowContext]:
    memory = ShadowContext(capacity)
    return SharedLayout(memory, seq_ids=IDS, leaf_ids=LEAF_IDS, capacity=capacity, alone=alone), memory  # type: ignore[arg-type]


def lane_layout(lane: int = LANE) -> tuple[LaneLayout, ShadowContext]:
    memory = ShadowContext(lane + LANE_SLACK, streams=IDS)
    return LaneLayout(memory, lanes=IDS, cells=lane + LANE_SLACK), memory  # type: ignore[arg-type]


def decode(layout: Layout, seq_id: int, tokens: list[int], draft: Draft = EMPTY_DRAFT) -> None:
    """One call with these tokens and the draft below the last one."""
    rows = RowsBuilder()
    if draft.leaf_ids:
        assert isinstance(layout, SharedLayout)
        layout.branch(seq_id, draft.leaf_ids)
    rows.add(seq_id, tokens, layout.length(seq_id), draft)
    layout.append(seq_id, len(rows))
    layout.context.decode(rows.build())


def whole_draft(seed: int, nodes: int, leaf_ids: range) -> Draft:
    tree = fit(bush(seed, nodes), nodes=nodes, depth=nodes, leaves=1 + len(leaf_ids))
    return Draft(tree, paths(tree), list(leaf_ids)[: len(paths(tree)) - 1])


class LayoutAgainstCells(RuleBasedStateMachine):
    """Any legal order of operations leaves each sequence with its own tokens, and nothing behind."""

    layout: Layout

    @initialize(lanes=st.booleans())
    def start(self, lanes: bool) -> None:
        self.layout, self.memory = lane_layout() if lanes else shared_layout()
        self.tokens: dict[int, list[int]] = {}  # expected, by sequence id
        self.left: dict[int, list[int]] = {}  # in free lanes
        self.limits: dict[int, int] = {}
        self.saved: list[tuple[SavedCells, list[int]]] = []
        self.next_token = 1000

    def choose(self, at: int) -> int | None:
        return sorted(self.tokens)[at % len(self.tokens)] if self.tokens else None

    def new_tokens(self, count: int) -> list[int]:
        self.next_token += count
        return list(range(self.next_token - count, self.next_token))

    def take(self, limit: int, keep: int = 0) -> int | None:
        lanes = isinstance(self.layout, LaneLayout)
        room = LANE if lanes else CAPACITY - sum(self.limits.values())
        assert self.layout.has_room(limit) is (len(self.tokens) < IDS and limit <= room)
        if not self.layout.has_room(limit):
            return None
        lowest = min(set(range(IDS)) - self.tokens.keys())
        left = self.left.pop(lowest, [])
        assert self.layout.left.tolist() == left
        keep = min(keep, len(left), limit)
        assert self.layout.take(limit, keep) == lowest
        self.tokens[lowest], self.limits[lowest] = left[:keep], limit
        return lowest

    @rule(limit=st.integers(1, CAPACITY + 1), keep=st.integers(0, LANE))
    def begin(self, limit: int, keep: int) -> None:
        self.take(limit, keep)

    @rule(at=st.integers(0, 9), length=st.integers(0, CAPACITY))
    def leave(self, at: int, length: int) -> None:
        seq_id = self.choose(at)
        if seq_id is None:
            return
        tokens = self.tokens.pop(seq_id)[:length]
        del self.limits[seq_id]
        self.layout.leave(seq_id, np.array(tokens, dtype=np.int32))
        if isinstance(self.layout, LaneLayout):
            self.left[seq_id] = tokens

    @rule(at=st.integers(0, 9), count=st.integers(1, 9))
    def go_on(self, at: int, count: int) -> None:
        seq_id = self.choose(at)
        if seq_id is None or count > self.limits[seq_id] - len(self.tokens[seq_id]):
            return
        tokens = self.new_tokens(count)
        decode(self.layout, seq_id, tokens)
        self.tokens[seq_id] += tokens

    @rule(at=st.integers(0, 9), seed=st.integers(0, 999), nodes=st.integers(1, 7), depth=st.integers(0, 7))
    def verify(self, at: int, seed: int, nodes: int, depth: int) -> None:
        seq_id = self.choose(at)
        if seq_id is None or 1 + nodes > self.limits[seq_id] - len(self.tokens[seq_id]):
            return
        draft = whole_draft(seed, nodes, LEAF_IDS if self.layout.trees else range(0))
        last = self.new_tokens(1)
        decode(self.layout, seq_id, last, draft)
        self.tokens[seq_id] += last
        accepted = draft.paths[seed % len(draft.paths)][:depth]
        self.layout.rewind(seq_id, len(self.tokens[seq_id]), accepted, draft.paths)
        self.tokens[seq_id] += [draft.tree[node].token for node in accepted]

    @rule(at=st.integers(0, 9), part=st.integers(0, 99), limit=st.integers(1, CAPACITY))
    def copy(self, at: int, part: int, limit: int) -> None:
        source = self.choose(at)
        if source is None or not self.tokens[source]:
            return
        length = min(1 + part % len(self.tokens[source]), limit)
        target = self.take(limit)
        if target is not None:
            self.layout.copy(source, target, length)
            self.tokens[target] = self.tokens[source][:length]

    @rule(at=st.integers(0, 9), length=st.integers(0, CAPACITY))
    def truncate(self, at: int, length: int) -> None:
        seq_id = self.choose(at)
        if seq_id is not None:
            self.layout.truncate(seq_id, length)
            del self.tokens[seq_id][length:]

    @rule(at=st.integers(0, 9))
    def release(self, at: int) -> None:
        seq_id = self.choose(at)
        if seq_id is not None:
            self.layout.release(seq_id)
            del self.tokens[seq_id], self.limits[seq_id]

    @rule(at=st.integers(0, 9))
    def save(self, at: int) -> None:
        seq_id = self.choose(at)
        if seq_id is not None and self.tokens[seq_id]:
            self.saved.append((self.layout.save(seq_id), [*self.tokens[seq_id]]))

    @rule(at=st.integers(0, 99), part=st.integers(0, 99), limit=st.integers(1, CAPACITY))
    def restore(self, at: int, part: int, limit: int) -> None:
        if not self.saved:
            return
        cells, tokens = self.saved[at % len(self.saved)]
        target = self.take(limit)
        if target is None:
            return
        length = min(1 + part % len(tokens), limit)
        promised = self.layout.fits(len(tokens))
        got = self.layout.restore(cells, target, length)
        assert got == length or (got == 0 and not promised)
        self.tokens[target] = tokens[:got]

    @rule()
    def close_gap(self) -> None:
        if not isinstance(self.layout, LaneLayout):
            return
        gap = self.layout.gap()
        assert (gap is None) is (sorted(self.tokens) == list(range(len(self.tokens))))
        if gap:
            last, free = gap
            assert last == max(self.tokens)
            assert self.take(self.limits[last]) == free
            self.layout.copy(last, free, len(self.tokens[last]))
            self.tokens[free] = self.tokens[last]
            self.layout.release(last)
            del self.tokens[last], self.limits[last]

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "layout"):
            return
        held = self.left | self.tokens
        assert self.memory.held() == {seq_id: tokens for seq_id, tokens in held.items() if tokens}
        for seq_id, tokens in self.tokens.items():
            assert self.layout.length(seq_id) == len(tokens)
        assert self.layout.used == sum(map(len, self.tokens.values())) <= self.layout.capacity


TestLayoutAgainstCells = LayoutAgainstCells.TestCase
TestLayoutAgainstCells.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


# The shared cache


def test_cells_of_a_prefix_are_free_only_when_nobody_holds_them() -> None:
    layout, memory = shared_layout()
    a, b = layout.take(10), layout.take(10)
    decode(layout, a, [1, 2, 3, 4, 5, 6])
    layout.copy(a, b, 4)
    assert memory.used == 6
    layout.release(a)
    assert (memory.used, memory.tokens(b)) == (4, [1, 2, 3, 4])
    layout.release(b)
    assert memory.used == 0


def test_cells_are_reserved_until_the_sequence_goes() -> None:
    layout, _ = shared_layout(100)
    a = layout.take(60)
    assert (layout.has_room(40), layout.has_room(41)) == (True, False)
    layout.take(40)
    assert not layout.has_room(1)
    layout.release(a)
    assert (layout.has_room(60), layout.has_room(61)) == (True, False)


def test_saved_cells_fit_beside_those_in_use() -> None:
    layout, _ = shared_layout(100)
    decode(layout, layout.take(90), [1] * 30)
    assert (layout.fits(70), layout.fits(71)) == (True, False)


def test_one_sequence_alone_has_the_cache_to_itself_and_no_trees() -> None:
    layout, _ = shared_layout(100, alone=True)
    assert not layout.trees
    a = layout.take(10)
    assert not layout.has_room(1)
    layout.release(a)
    assert layout.has_room(100)


@pytest.mark.parametrize("seed", range(10))
def test_a_rewound_tree_leaves_the_accepted_path(seed: int) -> None:
    """Several sequences, tree after tree, in one call."""
    rng = random.Random(seed)
    memory = ShadowContext(300)
    layout = SharedLayout(memory, seq_ids=3, leaf_ids=range(3, 30), capacity=300, alone=False)  # type: ignore[arg-type]
    expected = {layout.take(100): list(range(length)) for length in (10, 3, 25)}
    for seq_id, tokens in expected.items():
        decode(layout, seq_id, tokens)
    for step in range(4):
        rows, leaf_ids = RowsBuilder(), list(layout.leaf_ids)
        drafts = {}
        for seq_id in expected:
            tree = bush(rng.randrange(1000), rng.randint(1, 8))
            branches = len(paths(tree)) - 1
            draft = drafts[seq_id] = Draft(tree, paths(tree), leaf_ids[:branches])
            del leaf_ids[:branches]
            layout.branch(seq_id, draft.leaf_ids)
            rows.add(seq_id, [100 + step], layout.length(seq_id), draft)
            layout.append(seq_id, 1 + len(tree))
        memory.decode(rows.build())
        for seq_id, draft in drafts.items():
            path = rng.choice(draft.paths)
            accepted = path[: rng.randint(0, len(path))]
            expected[seq_id].append(100 + step)
            layout.rewind(seq_id, len(expected[seq_id]), accepted, draft.paths)
            expected[seq_id] += [draft.tree[node].token for node in accepted]
        assert memory.held() == expected
        assert layout.used == memory.used == sum(map(len, expected.values()))


def test_a_sequence_that_goes_takes_its_leaves_along() -> None:
    """As after a failed decode."""
    layout, memory = shared_layout()
    seq_id = layout.take(20)
    decode(layout, seq_id, [1, 2, 3], whole_draft(3, 6, LEAF_IDS))
    assert len(memory.held()) > 1
    layout.release(seq_id)
    assert (layout.used, memory.used) == (0, 0)


# Lanes


def test_a_lane_has_room_for_the_longest_sequence_and_a_full_draft() -> None:
    layout, memory = lane_layout(LANE)
    assert (layout.capacity, layout.largest) == (IDS * LANE, LANE)
    assert (layout.has_room(LANE), layout.has_room(LANE + 1)) == (True, False)
    assert (layout.fits(LANE), layout.fits(LANE + 1)) == (True, False)
    seq_id = layout.take(LANE)
    decode(layout, seq_id, [1] * (LANE - 1))
    draft = whole_draft(1, LANE_SLACK, range(0))
    decode(layout, seq_id, [1], Draft.chain(draft.tree, LANE_SLACK))
    layout.rewind(seq_id, LANE, [], draft.paths)
    assert memory.tokens(seq_id) == [1] * LANE


def test_a_copy_replaces_what_a_failed_decode_left_in_the_lane() -> None:
    layout, memory = lane_layout()
    a, b = layout.take(LANE), layout.take(LANE)
    decode(layout, a, [1, 2, 3, 4])
    decode(layout, b, [7, 7])
    layout.copy(a, b, 3)
    assert (memory.tokens(a), memory.tokens(b), layout.length(b)) == ([1, 2, 3, 4], [1, 2, 3], 3)


@pytest.mark.parametrize(
    ("released", "gap"),
    [((), None), ((3,), None), ((2, 3), None), ((0,), (3, 0)), ((1, 2), (3, 1)), ((0, 3), (2, 0))],
)
def test_a_gap_is_the_lowest_free_lane_below_one_in_use(
    released: tuple[int, ...], gap: tuple[int, int] | None
) -> None:
    layout, _ = lane_layout()
    assert layout.gap() is None
    for _ in range(IDS):
        layout.take(LANE)
    for lane in released:
        layout.release(lane)
    assert layout.gap() == gap


# Both


@pytest.mark.parametrize("make", [shared_layout, lane_layout])
def test_releasing_clears_also_cells_that_are_not_accounted_for(make: object) -> None:
    """A failed decode may have left cells that no sequence counts."""
    layout, memory = make()  # type: ignore[operator]
    seq_id = layout.take(10)
    rows = RowsBuilder()
    rows.add(seq_id, [1, 2, 3], 0, EMPTY_DRAFT)
    memory.decode(rows.build())
    layout.release(seq_id)
    assert memory.used == 0


@pytest.mark.parametrize("make", [shared_layout, lane_layout])
def test_cells_that_cannot_be_restored_leave_the_sequence_empty(
    make: object, caplog: pytest.LogCaptureFixture
) -> None:
    layout, memory = make()  # type: ignore[operator]
    a = layout.take(10)
    decode(layout, a, [1, 2, 3])
    saved = layout.save(a)
    memory.refuses = lambda: True
    b = layout.take(10)
    assert layout.restore(saved, b, 2) == 0
    assert (layout.length(b), memory.tokens(b), memory.tokens(a)) == (0, [], [1, 2, 3])
    assert [record.getMessage() for record in caplog.records] == [
        "saved cells are computed again: llama_decode failed with status 1"
    ]


@pytest.mark.parametrize("make", [shared_layout, lane_layout])
def test_truncating_to_what_is_there_does_not_touch_the_memory(make: object) -> None:
    layout, memory = make()  # type: ignore[operator]
    seq_id = layout.take(10)
    decode(layout, seq_id, [1, 2, 3, 4])
    layout.truncate(seq_id, 4)
    layout.truncate(seq_id, 9)
    assert memory.calls == []
