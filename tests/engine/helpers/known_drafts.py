"""Draft sources that know the outputs, and draft right and wrong tokens of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import cycle

from engine.core.draft_source import DraftSource
from engine.core.sequence import SequenceState
from engine.core.token_tree import ROOT, Node, Tree, chain


class Scripted(DraftSource):
    """Drafts from known outputs: right for some tokens, then wrong for some more.

    ways: how many of both, of each request in its turn.
    """

    def __init__(
        self, outputs: dict[str, tuple[int, ...]], ways: Sequence[tuple[int, int]], vocab: int
    ) -> None:
        self._outputs, self._vocab = outputs, vocab
        self._ways = dict(zip(outputs, cycle(ways), strict=False))

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
        return [self._one(s)[:limit] for s in sequences]

    def observe(self, sequence: SequenceState, tree: Tree, accepted: list[int]) -> None:
        right = min(self._ways[sequence.request.id][0], len(tree))
        assert accepted == list(range(right)), "all that is right, and nothing else"

    def _one(self, sequence: SequenceState) -> Tree:
        done = len(sequence.output)
        right, wrong = self._ways[sequence.request.id]
        known = self._outputs[sequence.request.id][done : done + right + wrong]
        return chain((t if i < right else (t + 1) % self._vocab for i, t in enumerate(known)), "scripted")


class Bushy(DraftSource):
    """Random trees that hold the known output along some path, or part of it, among wrong branches."""

    trees = True

    def __init__(self, outputs: dict[str, tuple[int, ...]], vocab: int, seed: int, nodes: int = 7) -> None:
        self._outputs, self._vocab, self._nodes = outputs, vocab, nodes
        self._rng = random.Random(seed)
        self.accepted = self.branched = 0

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
        return [self._one(s)[:limit] for s in sequences]

    def observe(self, sequence: SequenceState, tree: Tree, accepted: list[int]) -> None:
        self.accepted += len(accepted)
        self.branched += len({node.parent for node in tree}) < len(tree)

    def _one(self, sequence: SequenceState) -> Tree:
        rng, done = self._rng, len(sequence.output)
        known = self._outputs[sequence.request.id][done:]
        tree: Tree = []
        right = {ROOT}  # nodes on the path of the known output
        for _ in range(rng.randint(0, self._nodes)):
            parent = rng.choice([ROOT, *range(len(tree))])
            depth = 1 if parent == ROOT else tree[parent].depth + 1
            goes_on = parent in right and depth <= len(known) and rng.random() < 0.6
            token = known[depth - 1] if goes_on else rng.randrange(3, self._vocab)
            if any(node.parent == parent and node.token == token for node in tree):
                continue
            if parent in right and depth <= len(known) and token == known[depth - 1]:
                right.add(len(tree))
            tree.append(Node(token, parent, rng.random(), "bushy", depth))
        return tree


WAYS = [(4, 0), (0, 3), (2, 2), (1, 1)]


class Oracle(DraftSource):
    """Drafts the known output to its end, up to eight tokens a step."""

    def __init__(self, outputs: dict[str, tuple[int, ...]]) -> None:
        self._outputs = outputs

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
        return [chain(self._outputs[s.request.id][len(s.output) :][:8], "oracle")[:limit] for s in sequences]
