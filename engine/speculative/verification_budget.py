"""How many draft tokens a step should verify, and which: pure functions of path probabilities and T(n).

With R requests and a call of n rows taking T(n), a step that verifies the m likeliest of all
candidates, with path probabilities p1..pm, emits R + p1 + .. + pm tokens in expectation:
G(m) = (R + p1 + .. + pm) / (T(R + m) + spent).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from engine.core.token_tree import ROOT, Tree

MARGIN = 0.04  # G must beat plain decoding by this share: below it, the estimate is as likely wrong as right


def bucket(rows: int) -> int:
    """The number of rows rounded up to a call size in use. Few sizes let llama.cpp reuse its graph between
    calls, and its CPU kernels process rows by fours: 13 rows take longer than 16.
    """
    if rows <= 8:
        return rows
    step = 4 if rows <= 32 else 8 if rows <= 64 else 16
    return -(-rows // step) * step


def choose_nodes(
    requests: int,
    path_probabilities: Sequence[float],
    seconds: Callable[[int], float],
    *,
    rows: int = 0,
    spent: float = 0.0,
    margin: float = MARGIN,
) -> int:
    """The m that maximises G(m); 0 when none beats plain decoding by the margin.

    path_probabilities: of all candidates, falling. seconds: T(n). rows: of the call without candidates, 0 for
    one a request. spent: seconds that making the candidates took.
    """
    rows = rows or requests
    plain = requests / (seconds(rows) + spent)
    best, best_m, expected = plain * (1 + margin), 0, float(requests)
    for m, path_probability in enumerate(path_probabilities, 1):
        expected += path_probability
        if rows + m == bucket(rows + m):
            speed = expected / (seconds(rows + m) + spent)
            if speed > best:
                best, best_m = speed, m
    return best_m


def choose_width(
    requests: int,
    chains: Sequence[Sequence[float]],
    seconds: Callable[[int], float],
    *,
    rows: int,
    limit: int,
    spent: float = 0.0,
    margin: float = MARGIN,
    least: int = 0,
) -> int:
    """As choose_nodes, where each of `rows` sequences gets equally many rows: the draft tokens of each.

    chains: path probabilities of the drafts. limit: rows beside the first ones. least: the width that the
    call has in any case.
    """

    def hits(width: int) -> float:
        return sum(chain[width - 1] for chain in chains if len(chain) >= width)

    expected = requests + sum(map(hits, range(1, least + 1)))
    best, best_width = expected / (seconds(rows * (1 + least)) + spent) * (1 + margin), least
    for width in range(least + 1, min(limit // rows, max(map(len, chains), default=0)) + 1):
        expected += hits(width)
        speed = expected / (seconds(rows * (1 + width)) + spent)
        if speed > best:
            best, best_width = speed, width
    return best_width


def floor(requests: int, seconds: Callable[[int], float], nodes: int) -> float:
    """The least mean path probability at which 1 to `nodes` more rows pay for themselves."""
    plain = seconds(requests)
    return min((seconds(requests + m) / plain - 1) * requests / m for m in range(1, nodes + 1))


def rank_nodes(trees: Sequence[Tree]) -> list[tuple[int, int]]:
    """All nodes as (tree, node), the likeliest first. In every prefix of the list, a node's parent comes
    first.

    A child that claims a higher probability than its parent counts as equally likely.
    """
    ranked = []
    for t, tree in enumerate(trees):
        capped: list[float] = []
        for i, node in enumerate(tree):
            above = 1.0 if node.parent == ROOT else capped[node.parent]
            capped.append(min(node.path_probability, above))
            ranked.append((-capped[i], t, i))
    return [(t, i) for _, t, i in sorted(ranked)]


def keep_nodes(trees: Sequence[Tree], chosen: Iterable[tuple[int, int]]) -> list[Tree]:
    """The trees of only the chosen nodes, in their order; the parents of chosen nodes must be chosen too."""
    wanted: list[set[int]] = [set() for _ in trees]
    for t, i in chosen:
        wanted[t].add(i)
    taken: list[Tree] = []
    for tree, nodes in zip(trees, wanted, strict=True):
        new_index = {ROOT: ROOT}
        kept: Tree = []
        for i in sorted(nodes):
            new_index[i] = len(kept)
            kept.append(replace(tree[i], parent=new_index[tree[i].parent]))
        taken.append(kept)
    return taken


def merge(trees: Iterable[Tree]) -> Tree:
    """One tree of several for the same request. A path in two trees keeps the higher probability."""
    merged: Tree = []
    node_index: dict[tuple[int, int], int] = {}  # (parent, token) -> node
    for tree in trees:
        new_index = {ROOT: ROOT}
        for i, node in enumerate(tree):
            parent = new_index[node.parent]
            at = node_index.get((parent, node.token))
            if at is None:
                at = node_index[parent, node.token] = len(merged)
                merged.append(replace(node, parent=parent))
            elif node.path_probability > merged[at].path_probability:
                merged[at] = replace(node, parent=parent)
            new_index[i] = at
    return merged
