"""Which draft tokens stand. Lossless as long as choose() does not look at the candidates."""

from __future__ import annotations

from collections.abc import Callable

from engine.base.errors import EngineError
from engine.core.draft_source import ROOT, Tree
from engine.sampling.sampler import Choice


def sample_and_match(
    tree: Tree, choose: Callable[[int, int, list[int]], Choice]
) -> tuple[list[Choice], list[int]]:
    """Walk down the tree for as long as a child holds the token that the model itself chooses.

    choose(node, offset, candidates) draws the token at this output offset from the target
    distribution after `node` (ROOT first); the candidates are the tokens of its children. Returns
    the emitted choices, and the accepted nodes: one fewer, since the choice that leaves the tree is
    emitted too. Each choice is drawn by its own keyed random number, so the tree changes only how
    many come at once. Where choose() fails after a draft token, the choices before it stand: they may
    end the request, and if not, the next step meets the same error. Raises EngineError.
    """
    children: dict[int, dict[int, int]] = {}  # node -> token -> child
    for i, node in enumerate(tree):
        children.setdefault(node.parent, {})[node.token] = i
    emitted: list[Choice] = []
    accepted: list[int] = []
    at = ROOT
    while True:
        below = children.get(at, {})
        try:
            emitted.append(choose(at, len(emitted), [*below]))
        except EngineError:
            if not emitted:
                raise
            return emitted, accepted[:-1]
        if emitted[-1].token not in below:
            return emitted, accepted
        at = below[emitted[-1].token]
        accepted.append(at)
