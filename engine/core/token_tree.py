"""Token trees: cutting them to size, and the sequence ids of their rows when llama.cpp verifies them.

A tree is verified in one decode call. Each leaf has a sequence id, and the row of a node has the ids of all
leaves below it, so that attention sees the node on each of these paths. The first leaf has the request's own
id, so a chain needs no further ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

ROOT = -1


@dataclass(frozen=True, slots=True)
class Node:
    """One candidate token of a token tree.

    parent: index in the same tree, ROOT below the last accepted token; parents come before children.
    depth: 1 below the root. path_probability: calibrated probability that the model emits the whole path to
    this node. source: name of the draft source, for metrics.
    """

    token: int
    parent: int
    path_probability: float
    source: str
    depth: int


Tree = list[Node]  # siblings hold different tokens


def chain(tokens: Iterable[int], source: str, path_probability: float = 1.0) -> Tree:
    """A tree without branches."""
    return [Node(token, i - 1, path_probability, source, i + 1) for i, token in enumerate(tokens)]


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree to verify. paths: nodes from the root to each leaf. leaf_ids: of all leaves but the first."""

    tree: Tree = field(default_factory=list)
    paths: list[list[int]] = field(default_factory=list)
    leaf_ids: list[int] = field(default_factory=list)

    @classmethod
    def chain(cls, tree: Tree, length: int) -> Draft:
        """The likeliest path of a tree, down to this length."""
        kept = likeliest_path(tree)[:length]
        return cls(kept, [list(range(len(kept)))]) if kept else EMPTY_DRAFT

    def row_ids(self, seq_id: int) -> list[list[int]]:
        """The sequence ids of each node's row; llama.cpp masks attention by the first one."""
        ids: list[list[int]] = [[] for _ in self.tree]
        for leaf_id, path in zip([seq_id, *self.leaf_ids], self.paths, strict=False):
            for node in path:
                ids[node].append(leaf_id)
        return ids


EMPTY_DRAFT = Draft()


def paths(tree: Tree) -> list[list[int]]:
    """For each leaf, the likeliest first, its path: the nodes from below the root to the leaf."""
    inner = {node.parent for node in tree}
    leaves = [i for i in range(len(tree)) if i not in inner]
    leaves.sort(key=lambda i: -tree[i].path_probability)
    return [_path(tree, leaf) for leaf in leaves]


def _path(tree: Tree, node: int) -> list[int]:
    path: list[int] = []
    while node != ROOT:
        path.append(node)
        node = tree[node].parent
    return path[::-1]


def likeliest_path(tree: Tree) -> Tree:
    """The chain of the likeliest child below the root, its likeliest child, and so on."""
    best: dict[int, int] = {}  # parent -> its likeliest child
    for i, node in enumerate(tree):
        if node.parent not in best or node.path_probability > tree[best[node.parent]].path_probability:
            best[node.parent] = i
    path: Tree = []
    at = ROOT
    while at in best:
        at = best[at]
        path.append(replace(tree[at], parent=len(path) - 1))
    return path


def fit(tree: Tree, *, nodes: int, depth: int, leaves: int) -> Tree:
    """The tree cut to its first `nodes`, to none deeper than `depth`, and to the likeliest `leaves`."""
    if len(tree) > nodes or any(node.depth > depth for node in tree):
        tree = _keep(tree[: max(0, nodes)], lambda i, t: t[i].depth <= depth)
    leaf_paths = paths(tree)
    if len(leaf_paths) <= leaves:
        return tree
    kept = {i for path in leaf_paths[:leaves] for i in path}
    return _keep(tree, lambda i, _: i in kept)


def _keep(tree: Tree, wanted: Callable[[int, Tree], bool]) -> Tree:
    """The tree of the wanted nodes, whose parents must be wanted too, with parent indices renumbered."""
    new_index = {ROOT: ROOT}
    kept: Tree = []
    for i, node in enumerate(tree):
        if wanted(i, tree):
            new_index[i] = len(kept)
            kept.append(replace(node, parent=new_index[node.parent]))
    return kept
