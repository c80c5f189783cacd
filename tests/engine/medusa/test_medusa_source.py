"""Trees from scripted heads: their shape, which heads run, and what is learned from the emitted tokens."""

from __future__ import annotations

import gc
import itertools
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine import Request, SamplingParams
from engine.core.sequence import SequenceState
from engine.core.token_tree import ROOT, Tree, chain
from engine.medusa.calibration import Calibration
from engine.medusa.layouts import HeadsLoadError
from engine.medusa.medusa_source import HeadSource
from tests.engine.core.test_layouts import lane_layout

WIDTH = 4
Floats, Ids = NDArray[np.float32], NDArray[np.int32]


class ScriptedHeads:
    """Candidates by head, the same for every state: head h guesses 100 h, 100 h + 1, ... in this order."""

    sees_path = False

    def __init__(self, *confidences: list[float], metadata: dict[str, str] | None = None) -> None:
        self.heads = len(confidences)
        self.metadata = metadata or {}
        self.confidences = np.array(confidences, dtype=np.float32)
        self.calls: list[tuple[list[float], int, int]] = []  # first value of each state, first head, heads

    def propose(
        self, hidden: Floats, heads: int, top: int, first: int = 0, path: Ids | None = None
    ) -> tuple[Ids, Floats]:
        self.calls.append((hidden[:, 0].tolist(), first, heads))
        confidences = self.confidences[first:heads, :top]
        ids = np.arange(first, heads, dtype=np.int32)[:, None] * 100 + np.arange(
            confidences.shape[1], dtype=np.int32
        )
        return tuple(np.broadcast_to(a, (len(hidden), *a.shape)).copy() for a in (ids, confidences))  # type: ignore[return-value]


def sequence(state: float | None = 0.0, prompt: int = 3, **sampling: object) -> SequenceState:
    """state: first value of its hidden state; None leaves it unknown."""
    params = SamplingParams(**{"max_tokens": 5000, **sampling})  # type: ignore[arg-type]
    s = SequenceState(
        Request(id="-", prompt="-", sampling=params), np.full(prompt, 7, dtype=np.int32), arrived=0.0
    )
    s.hidden = None if state is None else np.full(WIDTH, state, dtype=np.float32)
    return s


def emit(s: SequenceState, *tokens: int) -> None:
    s.tokens[s.length : s.length + len(tokens)] = tokens
    s.length += len(tokens)


def path(tree: Tree, index: int) -> tuple[int, ...]:
    tokens: list[int] = []
    while index != ROOT:
        tokens.append(tree[index].token)
        index = tree[index].parent
    return tuple(reversed(tokens))


def test_a_chain_with_side_branches() -> None:
    source = HeadSource(ScriptedHeads([0.65, 0.25], [0.55, 0.17], [0.45, 0.05]))
    [tree] = source.draft([sequence()], 5)
    assert [(node.token, node.parent, node.depth) for node in tree] == [
        (0, ROOT, 1),
        (100, 0, 2),
        (1, ROOT, 1),
        (200, 1, 3),
        (100, 2, 2),
    ]
    assert [node.path_probability for node in tree] == pytest.approx(
        [0.65, 0.65 * 0.55, 0.25, 0.65 * 0.55 * 0.45, 0.1375]
    )
    assert {node.source for node in tree} == {source.name} == {"medusa"}


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.floats(0.001, 1.0), min_size=3, max_size=3), min_size=1, max_size=3),
    st.integers(0, 45),
    st.sampled_from([0.02, 0.1, 0.4]),
)
def test_trees_hold_the_likeliest_paths(confidences: list[list[float]], limit: int, worth: float) -> None:
    """Against brute force: chances are the products of those of the path, taken from a calibration alike."""
    confidences = [sorted((c / max(1.0, 1.2 * sum(h)) for c in h), reverse=True) for h in confidences]
    source = HeadSource(ScriptedHeads(*confidences))
    source.min_path_probability = worth
    [tree] = source.draft([sequence()], limit)
    for i, node in enumerate(tree):
        assert node.parent < i
        parent = tree[node.parent] if node.parent != ROOT else None
        assert node.depth == (parent.depth + 1 if parent else 1)
        assert worth <= node.path_probability <= (parent.path_probability if parent else 1.0)
    assert len({path(tree, i) for i in range(len(tree))}) == len(tree), "siblings differ"

    calibration = Calibration(len(confidences))
    as_given = np.array(confidences, dtype=np.float32).tolist()
    table = [calibration.chances(head, False, shares) for head, shares in enumerate(as_given)]
    path_probabilities = [
        float(np.prod([table[head][rank] for head, rank in enumerate(ranks)]))
        for depth in range(1, min(limit, len(confidences)) + 1)
        for ranks in itertools.product(range(3), repeat=depth)
    ]
    best = sorted((s for s in path_probabilities if s >= worth), reverse=True)[:limit]
    assert [node.path_probability for node in tree] == pytest.approx(best)


def test_without_hidden_states_or_room_nothing_is_drafted_and_no_head_runs() -> None:
    heads = ScriptedHeads([0.9])
    source = HeadSource(heads)
    assert source.draft([], 4) == []
    assert source.draft([sequence(None), sequence(None)], 4) == [[], []]
    assert source.draft([sequence()], 0) == [[]]
    assert heads.calls == []


def test_only_sequences_with_a_state_get_a_tree() -> None:
    heads = ScriptedHeads([0.9], [0.9])
    trees = HeadSource(heads).draft([sequence(1.0), sequence(None), sequence(2.0)], 4)
    assert [len(tree) for tree in trees] == [2, 0, 2]
    assert heads.calls == [([1.0, 2.0], 0, 1), ([1.0, 2.0], 1, 2)]


def test_heads_deeper_than_the_limit_do_not_run() -> None:
    heads = ScriptedHeads([0.9], [0.9], [0.9])
    HeadSource(heads).draft([sequence()], 2)
    assert [first for _, first, _ in heads.calls] == [0, 1]


class MixedHeads(ScriptedHeads):
    """Confident of states of 1, hopeless otherwise."""

    def propose(
        self, hidden: Floats, heads: int, top: int, first: int = 0, path: Ids | None = None
    ) -> tuple[Ids, Floats]:
        ids, confidences = super().propose(hidden, heads, top, first, path)
        return ids, confidences * hidden[:, :1, None]


def test_later_heads_run_only_where_earlier_ones_leave_a_chance_worth_a_row() -> None:
    heads = MixedHeads([0.9, 0.05], [0.6, 0.2], [0.6, 0.1])
    source = HeadSource(heads)
    source.min_path_probability = 0.4
    trees = source.draft([sequence(0.1), sequence(1.0), sequence(0.2)], 8)
    assert [len(tree) for tree in trees] == [0, 2, 0]
    called = [([round(state, 3) for state in states], *rest) for states, *rest in heads.calls]
    assert called == [([0.1, 1.0, 0.2], 0, 1), ([1.0], 1, 2), ([1.0], 2, 3)]


def converse(source: HeadSource, s: SequenceState, steps: int, rate: float, seed: int = 0) -> Tree:
    """A model that emits what head 0 thinks best at this rate, one token a step; the last tree."""
    rng = np.random.default_rng(seed)
    for right in rng.random(steps) < rate:
        source.draft([s], 4)
        emit(s, 0 if right else 50)
    [tree] = source.draft([s], 4)
    return tree


def test_path_probability_becomes_what_is_observed_without_any_verification() -> None:
    source = HeadSource(ScriptedHeads([0.35]))
    tree = converse(source, sequence(), 2000, 0.8)
    assert tree[0].path_probability == pytest.approx(0.8, abs=0.06)


def test_useless_heads_soon_propose_nothing_worth_a_row() -> None:
    source = HeadSource(ScriptedHeads([0.95], [0.95]))
    source.min_path_probability = 0.3
    assert len(source.draft([sequence()], 4)[0]) == 2
    assert converse(source, sequence(), 40, 0.0) == []


def test_later_heads_are_scored_when_their_tokens_have_come() -> None:
    source = HeadSource(ScriptedHeads([0.9], [0.9]))
    s = sequence()
    for _ in range(300):
        source.draft([s], 4)
        emit(s, 0)  # head 1 expects 100 after it, and never sees it
    [tree] = source.draft([s], 4)
    assert tree[0].path_probability > 0.9
    assert tree[1].path_probability < 0.1


def test_sampled_requests_are_counted_apart() -> None:
    source = HeadSource(ScriptedHeads([0.55]))
    source.min_path_probability = 0.1
    assert converse(source, sequence(temperature=1.0), 300, 0.0) == []
    [tree] = source.draft([sequence()], 4)
    assert tree[0].path_probability == pytest.approx(0.55)


def test_a_step_that_is_run_again_counts_once() -> None:
    once, again = (HeadSource(ScriptedHeads([0.55])) for _ in range(2))
    for source, drafts in ((once, 1), (again, 5)):
        s = sequence()
        for _ in range(drafts):
            source.draft([s], 4)
        emit(s, 0)
    assert once.draft([sequence()], 1) == again.draft([sequence()], 1)


@pytest.mark.slow
def test_ended_sequences_leave_nothing_behind() -> None:
    source = HeadSource(ScriptedHeads([0.55], [0.5]))
    sequences = [sequence() for _ in range(5)]
    source.draft(sequences, 4)
    kept = [weakref.ref(s) for s in sequences]
    sequences.clear()
    gc.collect()
    assert not any(ref() for ref in kept)


def test_a_long_sequence_keeps_only_the_last_proposals() -> None:
    source, s = HeadSource(ScriptedHeads([0.9], [0.9], [0.9])), sequence()
    converse(source, s, 100, 1.0)
    assert 1 <= len(s.source_state[source]) <= 3


def test_counts_from_training_are_the_start() -> None:
    trained = Calibration(1, window=np.inf)
    for i in range(1000):
        trained.score([[0]], [[0.35]], [0 if i % 10 else 1])
    heads = ScriptedHeads([0.35], metadata={"calibration": trained.to_json()})
    [tree] = HeadSource(heads).draft([sequence()], 1)
    assert tree[0].path_probability == pytest.approx(0.9, abs=0.04)


def test_counts_for_other_heads_are_refused() -> None:
    heads = ScriptedHeads([0.35], metadata={"calibration": Calibration(2).to_json()})
    with pytest.raises(HeadsLoadError, match="calibration is of shape"):
        HeadSource(heads)


def test_hearing_of_a_verified_tree_changes_nothing_yet() -> None:
    source, s = HeadSource(ScriptedHeads([0.9])), sequence()
    [tree] = source.draft([s], 1)
    source.observe(s, tree, [0])
    assert source.draft([sequence()], 1) == [tree]


def test_heads_go_on_from_what_is_expected() -> None:
    heads = ScriptedHeads([0.9], [0.8], [0.7])
    source, s = HeadSource(heads), sequence()
    s.expected = chain([5, 6], "grammar", 0.9)
    [tree] = source.draft([s], 8)
    assert tree[:2] == s.expected
    assert [(node.token, node.parent, node.depth, node.source) for node in tree[2:]] == [
        (200, 1, 3, "medusa")
    ]
    assert tree[2].path_probability == pytest.approx(0.9 * 0.7, abs=0.05)
    calls = len(heads.calls)
    s.expected = chain([5, 6, 7], "grammar", 0.9)
    assert source.draft([s], 8) == [[]]
    assert len(heads.calls) == calls, "no head is for the tokens after these"


def test_what_heads_say_after_expected_tokens_is_counted_apart() -> None:
    source = HeadSource(ScriptedHeads([0.9], [0.9]))

    def surety(expected: Tree) -> float:
        s = sequence()
        s.expected = expected
        return source.draft([s], 8)[0][-1].path_probability

    after = chain([5], "grammar")
    before = surety([]), surety(after)
    for token in [100] * 5 + [7] * 60:
        s = sequence()
        s.expected = after
        source.draft([s], 8)
        emit(s, 5, token)
        source.draft([s], 8)
    assert surety([]) == before[0]
    assert surety(after) < before[1] - 0.3
    right = surety(after)
    for _ in range(60):
        s = sequence()
        s.expected = after
        source.draft([s], 8)
        emit(s, 6, 7)  # what was expected did not come, so that the head is not to blame
        source.draft([s], 8)
    assert surety(after) == right


# Heads that see the path


class SeeingHeads(ScriptedHeads):
    """Each guesses the sum of the tokens on its path, and that plus 1."""

    sees_path = True

    def __init__(self, *confidences: list[float]) -> None:
        super().__init__(*confidences)
        self.paths: list[list[list[int]]] = []

    def propose(
        self, hidden: Floats, heads: int, top: int, first: int = 0, path: Ids | None = None
    ) -> tuple[Ids, Floats]:
        assert path is not None
        assert path.shape == (len(hidden), heads)
        self.paths.append(path.tolist())
        ids, confidences = super().propose(hidden, heads, top, first, path)
        return path.sum(axis=1)[:, None, None] + (ids % 100), confidences


def test_children_are_asked_for_below_each_node_that_is_worth_it() -> None:
    heads = SeeingHeads([0.5, 0.4], [0.5, 0.1])
    source = HeadSource(heads)
    source.min_path_probability = 0.1
    [tree] = source.draft([sequence()], 8)
    assert heads.paths == [[[7]], [[7, 7], [7, 8]]], "in one call for a depth"
    found = {path(tree, i) for i in range(len(tree))}
    assert found == {(7,), (8,), (7, 14), (8, 15)}


def test_a_node_that_is_cut_is_not_asked_for() -> None:
    heads = SeeingHeads([0.5, 0.4], [0.5, 0.1])
    source = HeadSource(heads)
    source.min_path_probability = 0.1
    [tree] = source.draft([sequence()], 1)
    assert [path(tree, i) for i in range(len(tree))] == [(7,)]
    [tree] = source.draft([sequence()], 2)
    assert heads.paths[-1] == [[7, 7], [7, 8]]
    assert {path(tree, i) for i in range(len(tree))} == {(7,), (8,)}, "the likeliest two"


def test_where_drafts_do_not_branch_only_the_best_child_is_followed() -> None:
    heads = SeeingHeads([0.5, 0.4], [0.5, 0.4], [0.5, 0.4])
    source, s = HeadSource(heads), sequence()
    s.layout = lane_layout()[0]
    [tree] = source.draft([s], 8)
    assert [path(tree, i) for i in range(len(tree))] == [(7,), (7, 14), (7, 14, 28)]
    assert heads.paths == [[[7]], [[7, 7]], [[7, 7, 14]]]


def test_expected_tokens_are_part_of_the_path() -> None:
    heads = SeeingHeads([0.5], [0.5], [0.5])
    source, s = HeadSource(heads), sequence()
    s.expected = chain([5, 6], "grammar", 0.9)
    [tree] = source.draft([s], 8)
    assert heads.paths == [[[7, 5, 6]]]
    assert [node.token for node in tree] == [5, 6, 18]


def test_what_came_is_counted_where_its_path_was_asked_for() -> None:
    """The second head is right below the first's second candidate alone."""
    heads = SeeingHeads([0.5, 0.4], [0.5, 0.4])
    source = HeadSource(heads)
    source.min_path_probability = 0.05
    for _ in range(200):
        s = sequence()
        source.draft([s], 8)
        emit(s, 8, 15)
        source.draft([s], 8)
    [tree] = source.draft([sequence()], 8)
    chances = {path(tree, i): node.path_probability for i, node in enumerate(tree)}
    assert chances[8,] > 0.9
    assert chances[8, 15] > 0.8
    assert chances.get((7,), 0.0) < 0.1


@pytest.mark.parametrize(("max_tokens", "deepest"), [(1, 0), (2, 1), (3, 2), (9, 3)])
def test_heads_do_not_run_for_tokens_that_no_answer_has_room_for(max_tokens: int, deepest: int) -> None:
    heads = ScriptedHeads([0.9], [0.9], [0.9])
    [tree] = HeadSource(heads).draft([sequence(max_tokens=max_tokens)], 8)
    assert max((node.depth for node in tree), default=0) == len(heads.calls) == deepest
