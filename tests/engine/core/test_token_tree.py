"""The shape of token trees: paths, cuts, and the sequence ids of their rows."""

from __future__ import annotations

import random

import pytest

from engine.core.token_tree import EMPTY_DRAFT, ROOT, Draft, Node, Tree, chain, fit, likeliest_path, paths


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


def test_the_likeliest_path_takes_the_likeliest_child_at_each_node() -> None:
    """Not the way to the likeliest leaf, which here is the first node."""
    tree = [
        Node(1, ROOT, 0.3, "-", 1),
        Node(2, ROOT, 0.6, "-", 1),
        Node(3, 1, 0.2, "a", 2),
        Node(4, 1, 0.25, "b", 2),
        Node(5, 0, 0.29, "-", 2),
    ]
    assert likeliest_path(tree) == [Node(2, ROOT, 0.6, "-", 1), Node(4, 0, 0.25, "b", 2)]
    assert likeliest_path([]) == []
    assert likeliest_path(chain([4, 5, 6], "-")) == chain([4, 5, 6], "-")


@pytest.mark.parametrize("seed", range(20))
def test_the_likeliest_path_is_one_of_the_trees_own_to_a_leaf(seed: int) -> None:
    tree = bush(seed, 12)
    path = likeliest_path(tree)
    assert [node.parent for node in path] == list(range(-1, len(path) - 1))
    assert [node.token for node in path] in [[tree[node].token for node in way] for way in paths(tree)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("length", [0, 1, 2, 20])
def test_a_draft_that_is_a_chain_has_one_path_without_further_ids(seed: int, length: int) -> None:
    tree = bush(seed, 12)
    draft = Draft.chain(tree, length)
    assert draft.tree == likeliest_path(tree)[:length]
    assert draft.paths == (paths(draft.tree) if length else [])
    assert draft.row_ids(7) == [[7]] * len(draft.tree)
    assert (draft is EMPTY_DRAFT) is (length == 0)


def test_no_draft_is_made_of_no_tree() -> None:
    assert Draft.chain([], 5) is EMPTY_DRAFT
