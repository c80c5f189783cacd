"""The tree of decoding "medusa": the best of all trees by brute force, and no wider than a call."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from engine.core.token_tree import ROOT
from engine.medusa.calibration import RANKS
from engine.medusa.medusa_source import HeadSource
from engine.speculative.static_tree import RANKED_CALLS, StaticTrees, best_nodes, best_size
from tests.engine.core.test_layouts import lane_layout
from tests.engine.medusa.test_medusa_source import ScriptedHeads, SeeingHeads, emit, path, sequence
from tests.support.measuring.profiles import FixedProfile, flat

CHANCES = [  # by head, whether below a candidate that was not its head's best, and rank
    [[0.6, 0.2, 0.1], [0.0, 0.0, 0.0]],
    [[0.5, 0.3, 0.05], [0.35, 0.2, 0.15]],
    [[0.4, 0.25, 0.2], [0.3, 0.1, 0.05]],
]
PATHS = [
    ranks for depth in (1, 2, 3) for ranks in itertools.product(range(3), repeat=depth)
]  # every node that a tree of these heads can have


def path_probability(ranks: tuple[int, ...]) -> float:
    chance = 1.0
    for head, rank in enumerate(ranks):
        chance *= CHANCES[head][any(ranks[:head])][rank]
    return chance


def test_the_likeliest_places_come_first_each_below_its_parent() -> None:
    ranked = best_nodes(CHANCES, len(PATHS))
    likeliest = sorted((path_probability(ranks) for ranks in PATHS), reverse=True)
    assert [chance for _, chance in ranked] == pytest.approx(likeliest)
    paths: list[tuple[int, ...]] = []
    for (parent, head, rank), chance in ranked:
        path = (*(paths[parent] if parent != ROOT else ()), rank)
        assert len(path) == head + 1
        assert chance == pytest.approx(path_probability(path))
        paths.append(path)
    assert sorted(paths) == sorted(PATHS)


@pytest.mark.parametrize("requests", [1, 3, 16])
@pytest.mark.parametrize("row_s", [1e-6, 0.0005, 0.002, 0.01, 0.1])
def test_the_size_is_the_one_with_the_most_tokens_a_second(requests: int, row_s: float) -> None:
    profile = FixedProfile({n: 0.01 + row_s * n for n in (1, 1000)})
    path_probabilities = [chance for _, chance in best_nodes(CHANCES, len(PATHS))]

    def speed(nodes: int) -> float:
        return (1 + sum(path_probabilities[:nodes])) / profile.seconds(requests * (1 + nodes))

    gains = [requests * chance for chance in path_probabilities]
    chosen = best_size(gains, requests, lambda nodes: profile.seconds(requests * (1 + nodes)))
    assert chosen == max(range(1, len(PATHS) + 1), key=speed)


@pytest.fixture(autouse=True)
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.speculative.static_tree.time.perf_counter", lambda: 0.0)


@pytest.fixture
def source() -> HeadSource:
    return HeadSource(ScriptedHeads(*([0.3] * RANKS for _ in range(3))))


def test_trees_shrink_to_what_a_call_holds(source: HeadSource) -> None:
    trees = StaticTrees(source)
    sizes = []
    for limit in (1000, 30, 5, 2):
        drawn = trees.force([sequence(), sequence(), sequence(None), sequence()], flat(), 4, limit)
        assert drawn[2] == []
        assert len({len(drawn[i]) for i in (0, 1, 3)}) == 1, "each gets the same"
        sizes.append(len(drawn[0]))
    assert sizes[0] > 10
    assert sizes[1:] == [10, 1, 0]


def test_a_tree_holds_what_the_heads_guess(source: HeadSource) -> None:
    ranked = best_nodes(source.mean_chances, 20)
    [tree] = StaticTrees(source).force([sequence()], flat(), 1, 20)
    assert [(node.token, node.parent, node.depth) for node in tree] == [
        (100 * head + rank, parent, head + 1) for (parent, head, rank), _ in ranked
    ]


def test_places_are_filled_below_the_tokens_on_their_paths() -> None:
    heads = SeeingHeads(*([0.3] * RANKS for _ in range(2)))
    trees = StaticTrees(HeadSource(heads))
    drafted = trees.force([sequence(1.0), sequence(None), sequence(2.0)], flat(), 3, 40)
    assert len(drafted[0]) == len(drafted[2]) > RANKS
    assert drafted[1] == []
    for tree in (drafted[0], drafted[2]):
        assert {node.depth for node in tree} == {1, 2}
        for i, node in enumerate(tree):
            above = 7 + sum(path(tree, i)[:-1])
            assert node.token in range(above, above + RANKS), "what the heads guess there"
        assert len({path(tree, i) for i in range(len(tree))}) == len(tree)
    parents = {node.parent for node in drafted[0]}
    assert [len(call) for call in heads.paths] == [2, 2 * (len(parents) - 1)], "a call for a depth"


def test_in_lanes_it_is_a_chain_as_long_as_pays_for_all() -> None:
    """A token of one more sequence costs a row of each."""
    source = HeadSource(ScriptedHeads(*([0.9, *[0.01] * 7] for _ in range(4))))
    steep = FixedProfile({n: 0.01 + 0.001 * n for n in (1, 1000)})
    lengths = []
    for others in (0, 2, 30):
        s = sequence()
        s.layout = lane_layout()[0]
        [tree] = StaticTrees(source).force([s], steep, 1 + others, 500)
        assert [node.parent for node in tree] == [ROOT, *range(len(tree) - 1)]
        lengths.append(len(tree))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[2] == 1


def test_slow_heads_are_asked_less_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("engine.speculative.static_tree.time.perf_counter", lambda: clock[0])
    s = sequence()
    s.layout = lane_layout()[0]

    class Slow(ScriptedHeads):
        def propose(self, *given: Any, **named: Any) -> Any:
            clock[0] += 0.1
            return super().propose(*given, **named)

    trees = StaticTrees(HeadSource(Slow(*([0.6, *[0.01] * 7] for _ in range(4)))))
    depths = [len(trees.force([s], flat(), 1, 64)[0]) for _ in range(60)]
    assert depths[0] > depths[-1] == 1


def test_the_places_follow_what_was_right() -> None:
    """Heads without counts, the second candidate of the second of which is always right."""
    trees = StaticTrees(HeadSource(ScriptedHeads([0.6, 0.3], [0.6, 0.3])))
    s = sequence()
    [before] = trees.force([s], flat(), 1, 2)
    assert 101 not in {node.token for node in before}
    for _ in range(RANKED_CALLS):
        trees.force([s], flat(), 1, 2)
        emit(s, 0, 101)
    [after] = trees.force([s], flat(), 1, 2)
    assert [node.token for node in after] == [0, 101]


def test_an_answer_with_one_token_left_has_no_tree(source: HeadSource) -> None:
    trees = StaticTrees(source).force([sequence(max_tokens=1), sequence()], flat(), 2, 8)
    assert (len(trees[0]), len(trees[1]) > 0) == (0, True)
