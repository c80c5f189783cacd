"""Which draft tokens stand. Lossless: the output is what plain decoding would have emitted."""

from __future__ import annotations

from collections.abc import Callable

from engine.draft import ROOT, Tree
from engine.sampling import Choice


def sample_and_match(tree: Tree, choose: Callable[[int, int], Choice]) -> tuple[list[Choice], list[int]]:
    """Walk down the tree for as long as a child holds the token that the model itself chooses.

    choose(node, offset) draws the token at this output offset from the target distribution after
    `node` (ROOT first). Returns the emitted choices, and the accepted nodes: one fewer, since the
    choice that leaves the tree is emitted too. Each choice is drawn by its own keyed random number,
    so the tree changes only how many come at once.
    """
    children = {(node.parent, node.token): i for i, node in enumerate(tree)}
    emitted: list[Choice] = []
    accepted: list[int] = []
    at = ROOT
    while True:
        emitted.append(choose(at, len(emitted)))
        child = children.get((at, emitted[-1].token))
        if child is None:
            return emitted, accepted
        accepted.append(child)
        at = child
