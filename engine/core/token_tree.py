"""The shape of token trees: which nodes fit, and which sequence ids their rows carry.

A tree is verified in one call: each leaf has a sequence id, and a node's row carries the ids of all
leaves below it, so that it is attended to on every path it lies on. The first leaf's id is the
request's own, so a chain needs no other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from engine.core.draft_source import ROOT, Tree


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree ready to be verified: the paths to its leaves, and ids for all leaves but the first."""

    tree: Tree = field(default_factory=list)
    paths: list[list[int]] = field(default_factory=list)
    leaf_ids: list[int] = field(default_factory=list)

    def row_ids(self, seq_id: int) -> list[list[int]]:
        """For each node the ids its row carries, the one that decides what it attends to first."""
        ids: list[list[int]] = [[] for _ in self.tree]
        for leaf_id, path in zip([seq_id, *self.leaf_ids], self.paths, strict=False):
            for node in path:
                ids[node].append(leaf_id)
        return ids


NO_DRAFT = Draft()


def paths(tree: Tree) -> list[list[int]]:
    """For each leaf, the likeliest first, the nodes on the way to it from below the root."""
    inner = {node.parent for node in tree}
    leaves = [i for i in range(len(tree)) if i not in inner]
    leaves.sort(key=lambda i: -tree[i].survival)
    return [_path(tree, leaf) for leaf in leaves]


def _path(tree: Tree, node: int) -> list[int]:
    path: list[int] = []
    while node != ROOT:
        path.append(node)
        node = tree[node].parent
    return path[::-1]


def fit(tree: Tree, *, nodes: int, depth: int, leaves: int) -> Tree:
    """The tree cut to what fits: the first `nodes`, none deeper than `depth`, the likeliest `leaves`."""
    if len(tree) > nodes or any(node.depth > depth for node in tree):
        tree = _keep(tree[: max(0, nodes)], lambda i, t: t[i].depth <= depth)
    ways = paths(tree)
    if len(ways) <= leaves:
        return tree
    kept = {i for way in ways[:leaves] for i in way}
    return _keep(tree, lambda i, _: i in kept)


def _keep(tree: Tree, wanted: Callable[[int, Tree], bool]) -> Tree:
    """The wanted nodes, whose parents must be wanted too, with their parents' new places."""
    place = {ROOT: ROOT}
    kept: Tree = []
    for i, node in enumerate(tree):
        if wanted(i, tree):
            place[i] = len(kept)
            kept.append(replace(node, parent=place[node.parent]))
    return kept
