"""The shape of token trees: paths, cuts, and the sequence ids of their rows."""

from __future__ import annotations

import random

import pytest

from engine.core.token_tree import ROOT, Draft, Node, Tree, chain, fit, paths


def bush(seed: int, nodes: int) -> Tree:
    rng = random.Random(seed)
    tree: Tree = []
    for token in range(nodes):
        parent = rng.choice([ROOT, *range(len(tree))])
        depth = 1 if parent == ROOT else tree[parent].depth + 1
        tree.append(Node(token, parent, rng.random(), "-", depth))
    return tree


def test_a_chain_is_one_path_and_needs_no_further_id() -> None:
    tree = chain([4, 5, 6], "-")
    assert paths(tree) == [[0, 1, 2]]
    assert Draft(tree, paths(tree)).row_ids(9) == [[9], [9], [9]]


def test_the_likeliest_leaf_comes_first() -> None:
    tree = [Node(1, ROOT, 0.2, "-", 1), Node(2, ROOT, 0.7, "-", 1), Node(3, 1, 0.5, "-", 2)]
    assert paths(tree) == [[1, 2], [0]]
    assert Draft(tree, paths(tree), [20]).row_ids(9) == [[20], [9], [9]]


@pytest.mark.parametrize("seed", range(20))
def test_every_node_carries_the_ids_of_the_leaves_below_it(seed: int) -> None:
    tree = bush(seed, 12)
    ways = paths(tree)
    ids = Draft(tree, ways, list(range(100, 99 + len(ways)))).row_ids(7)
    for node, carried in enumerate(ids):
        assert len(carried) == sum(node in way for way in ways) > 0
        if (parent := tree[node].parent) != ROOT:
            assert set(carried) <= set(ids[parent])
    for way in ways:
        assert [tree[node].depth for node in way] == [*range(1, len(way) + 1)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("nodes", "depth", "leaves"), [(5, 9, 9), (12, 2, 9), (12, 9, 1), (7, 3, 2), (0, 9, 9)]
)
def test_a_cut_tree_is_a_part_of_the_tree(seed: int, nodes: int, depth: int, leaves: int) -> None:
    tree = bush(seed, 12)
    cut = fit(tree, nodes=nodes, depth=depth, leaves=leaves)
    assert len(cut) <= nodes
    assert all(node.depth <= depth for node in cut)
    assert len(paths(cut)) <= leaves
    whole = {tuple(tree[node].token for node in way[: i + 1]) for way in paths(tree) for i in range(len(way))}
    part = {tuple(cut[node].token for node in way[: i + 1]) for way in paths(cut) for i in range(len(way))}
    assert part <= whole
    if (nodes, depth, leaves) == (12, 2, 9) and len(paths(cut)) < 9:
        assert len(cut) == sum(node.depth <= 2 for node in tree)


def test_what_fits_stays_as_it_is() -> None:
    tree = bush(1, 8)
    assert fit(tree, nodes=8, depth=8, leaves=8) == tree
