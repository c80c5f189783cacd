"""The rule that picks the tree, as pure functions: against brute force, and in a simulated clock."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.token_tree import ROOT, Node, Tree, chain
from engine.speculative.regret_budget import ALLOWANCE, CREDIT, GRACE, LOSS_BOUND, RegretBudget
from engine.speculative.verification_budget import (
    bucket,
    choose_nodes,
    choose_width,
    floor,
    keep_nodes,
    merge,
    rank_nodes,
)

TWO_CORES = {1: 6.7, 2: 9.4, 3: 12.1, 4: 14.1, 5: 17.5, 6: 21.0, 7: 22.0, 8: 23.3}
path_probabilities = st.lists(st.floats(0, 1), max_size=7).map(lambda s: sorted(s, reverse=True))
curves = st.lists(st.floats(0, 3), min_size=40, max_size=40).map(
    lambda steps: {n: 1 + sum(steps[:n]) for n in range(1, 41)}
)


def forest(rng: random.Random, trees: int, nodes: int) -> list[Tree]:
    """Random trees whose path_probabilities fall along every path."""
    made = []
    for _ in range(trees):
        tree: Tree = []
        for i in range(rng.randint(0, nodes)):
            parent = rng.choice([ROOT, *range(i)])
            above, depth = (
                (1.0, 1) if parent == ROOT else (tree[parent].path_probability, tree[parent].depth + 1)
            )
            tree.append(Node(i, parent, above * rng.random(), "s", depth))
        made.append(tree)
    return made


@given(requests=st.integers(1, 8), path_probabilities=path_probabilities, curve=curves)
def test_the_chosen_number_is_the_best_there_is(
    requests: int, path_probabilities: list[float], curve: dict[int, float]
) -> None:
    def speed(m: int) -> float:
        return (requests + sum(path_probabilities[:m])) / curve[requests + m]

    chosen = choose_nodes(requests, path_probabilities, curve.__getitem__, margin=0.0)
    shapes = [m for m in range(len(path_probabilities) + 1) if bucket(requests + m) == requests + m]
    assert speed(chosen) >= max(speed(m) for m in {0, *shapes}) * (1 - 1e-12)


@given(
    requests=st.integers(1, 8), path_probabilities=path_probabilities, curve=curves, margin=st.floats(0, 0.5)
)
def test_nothing_is_drafted_for_less_than_the_margin(
    requests: int, path_probabilities: list[float], curve: dict[int, float], margin: float
) -> None:
    m = choose_nodes(requests, path_probabilities, curve.__getitem__, margin=margin)
    gain = (requests + sum(path_probabilities[:m])) / curve[requests + m] * curve[requests] / requests
    assert m == 0 or gain > (1 + margin) * (1 - 1e-12)


def test_two_cores_take_few_nodes_and_a_flat_curve_takes_all() -> None:
    chances = [0.8, 0.6, 0.45, 0.3, 0.2, 0.1, 0.05]
    assert choose_nodes(1, chances, TWO_CORES.__getitem__) == 3
    assert choose_nodes(1, chances, lambda n: 6.7 + 0.01 * n) == 7
    assert choose_nodes(1, [0.4], TWO_CORES.__getitem__) == 0


def test_candidates_that_cost_much_to_make_need_not_pay_for_it_again() -> None:
    """Their cost is spent either way, so the choice is between rows alone."""
    assert choose_nodes(1, [0.5], TWO_CORES.__getitem__, spent=0.0) == 1
    assert choose_nodes(1, [0.3], TWO_CORES.__getitem__, spent=0.0) == 0
    assert choose_nodes(1, [0.5], TWO_CORES.__getitem__, spent=5.0) == 1


def test_rows_that_are_in_the_call_anyway_move_the_start_of_the_curve() -> None:
    steep_then_flat = {1: 1.0, 2: 2.0, 3: 3.0, 4: 3.01, 5: 3.02}
    assert choose_nodes(1, [0.9], steep_then_flat.__getitem__) == 0
    assert choose_nodes(1, [0.9], steep_then_flat.__getitem__, rows=3) == 1


chains_of = st.lists(path_probabilities, min_size=1, max_size=4)
lane_curves = st.lists(st.floats(0, 3), min_size=60, max_size=60).map(
    lambda steps: {n: 1 + sum(steps[:n]) for n in range(1, 61)}
)


@given(
    chains=chains_of,
    curve=lane_curves,
    filled=st.integers(0, 2),
    limit=st.integers(0, 40),
    margin=st.floats(0, 0.5),
    least=st.integers(0, 2),
)
def test_the_chosen_width_is_the_best_there_is(
    chains: list[list[float]], curve: dict[int, float], filled: int, limit: int, margin: float, least: int
) -> None:
    """filled: lanes in the call that draft nothing and get as many rows. least: rows that it has anyway."""
    requests, rows = len(chains), len(chains) + filled

    def speed(width: int) -> float:
        expected = requests + sum(sum(one[:width]) for one in chains)
        return expected / curve[rows * (1 + width)]

    def gain(width: int) -> float:
        return speed(width) / speed(least)

    width = choose_width(
        requests, chains, curve.__getitem__, rows=rows, limit=limit, margin=margin, least=least
    )
    possible = range(least + 1, min(limit // rows, max(map(len, chains))) + 1)
    if width > least:
        assert width in possible
        assert gain(width) > (1 + margin) * (1 - 1e-12)
        assert gain(width) >= max(map(gain, possible)) * (1 - 1e-12)
    else:
        assert width == least
        assert all(gain(one) <= (1 + margin) * (1 + 1e-12) for one in possible)


def test_a_width_pays_by_the_drafts_of_all() -> None:
    def wide(chains: list[list[float]], limit: int = 64) -> int:
        return choose_width(len(chains), chains, lambda n: 4.0 + n, rows=len(chains), limit=limit)

    good, bad = [0.9, 0.8, 0.3], list[float]()
    assert wide([good] * 4) == 2
    assert wide([good] * 4, limit=7) == 1, "two rows more for each are eight"
    assert wide([good] * 4, limit=3) == 0
    assert wide([good, bad, bad, bad]) == 0, "three of four rows would be of no use"
    assert choose_nodes(4, good, lambda n: 4.0 + n) > 0, "where rows are for one alone, they pay"
    assert wide([bad] * 4) == 0


@pytest.mark.parametrize(("rows", "shape"), [(1, 1), (8, 8), (9, 12), (32, 32), (33, 40), (65, 80)])
def test_shapes_are_few(rows: int, shape: int) -> None:
    assert bucket(rows) == shape


def test_the_floor_is_the_least_mean_path_probability_that_can_pay() -> None:
    assert floor(1, lambda n: 1 + 0.4 * (n - 1), 4) == pytest.approx(0.4)
    assert floor(1, TWO_CORES.__getitem__, 7) == pytest.approx((23.3 / 6.7 - 1) / 7)


@pytest.mark.parametrize("seed", range(30))
def test_every_prefix_of_the_order_is_a_forest_and_the_likeliest_one(seed: int) -> None:
    trees = forest(random.Random(seed), 3, 4)
    ranked = rank_nodes(trees)
    assert len(ranked) == sum(map(len, trees))
    for size in range(len(ranked) + 1):
        taken = keep_nodes(trees, ranked[:size])
        assert sum(map(len, taken)) == size
        for tree in taken:
            assert all(node.parent < i for i, node in enumerate(tree))
            assert all(
                node.depth == (1 if node.parent == ROOT else tree[node.parent].depth + 1) for node in tree
            )
        everything = [node.path_probability for tree in trees for node in tree]
        best = max(sum(some) for some in itertools.combinations(everything, size))
        assert sum(node.path_probability for tree in taken for node in tree) == pytest.approx(best)


def test_a_child_said_to_be_likelier_than_its_parent_still_comes_after_it() -> None:
    tree = [Node(1, ROOT, 0.2, "s", 1), Node(2, 0, 0.9, "s", 2), Node(3, ROOT, 0.3, "s", 1)]
    assert rank_nodes([tree]) == [(0, 2), (0, 0), (0, 1)]


def test_merging_keeps_one_node_a_path_with_the_better_chance_and_its_source() -> None:
    medusa = [
        Node(5, ROOT, 0.6, "medusa", 1),
        Node(6, ROOT, 0.3, "medusa", 1),
        Node(7, 0, 0.4, "medusa", 2),
    ]
    lookup = chain([6, 7, 8], "lookup", 0.9)
    merged = merge([medusa, lookup])
    assert [(n.token, n.parent, n.path_probability, n.source) for n in merged] == [
        (5, ROOT, 0.6, "medusa"),
        (6, ROOT, 0.9, "lookup"),
        (7, 0, 0.4, "medusa"),
        (7, 1, 0.9, "lookup"),
        (8, 3, 0.9, "lookup"),
    ]


@settings(max_examples=50)
@given(st.integers(0, 2**32))
def test_merged_trees_hold_the_paths_of_both_once(seed: int) -> None:
    rng = random.Random(seed)
    a, b = forest(rng, 2, 6)
    a = [Node(rng.randint(0, 2), n.parent, n.path_probability, "a", n.depth) for n in a]
    b = [Node(rng.randint(0, 2), n.parent, n.path_probability, "b", n.depth) for n in b]
    merged = merge([a, b])
    ways = [path(merged, i) for i in range(len(merged))]
    assert len(set(ways)) == len(ways)
    assert set(ways) == {path(t, i) for t in (a, b) for i in range(len(t))}


def path(tree: Tree, i: int) -> tuple[int, ...]:
    node = tree[i]
    return (*(() if node.parent == ROOT else path(tree, node.parent)), node.token)


@pytest.mark.parametrize("costly", [True, False])
@pytest.mark.parametrize("step_loss", [0.05, 0.3, 3.0])
def test_drafts_that_never_pay_lose_about_one_percent(step_loss: float, costly: bool) -> None:
    regret, spent, steps = RegretBudget(), 0.0, 20_000
    for _ in range(steps):
        took = 1 if (regret.strained if costly else regret.paused) else 1 + step_loss
        regret.step(took, 1)
        spent += took
    lost = spent - steps
    assert lost <= LOSS_BOUND * spent + ALLOWANCE + (0 if costly else GRACE) + step_loss
    assert lost >= 0.5 * LOSS_BOUND * spent, "it goes on trying"


def test_gains_are_remembered_only_so_far() -> None:
    regret = RegretBudget()
    for _ in range(1000):
        regret.step(1, 2)
    lost = 0
    while not regret.paused:
        regret.step(2, 1)
        lost += 1
    assert CREDIT + GRACE < lost < CREDIT + GRACE + 2
