"""One tree for every step, as Medusa was first described: what decoding "medusa" forces, to compare with."""

from __future__ import annotations

from collections.abc import Sequence as Many
from heapq import heappop, heappush

import numpy as np

from engine.core.draft_source import ROOT, Node, Tree
from engine.core.sequence import Sequence
from engine.medusa.medusa_source import HeadSource
from engine.speculative.latency_model import LatencyProfile

MAX_NODES = 64  # from here on even a GPU gains little

Place = tuple[int, int, int]  # (parent, head, rank)


class StaticTrees:
    """Draws the same tree for each request from its heads' candidates, however likely they look."""

    def __init__(self, source: HeadSource) -> None:
        self._source = source
        self._ranked = best_places(source.mean_chances, MAX_NODES)

    def force(self, sequences: Many[Sequence], profile: LatencyProfile, limit: int) -> list[Tree]:
        known = [i for i, sequence in enumerate(sequences) if sequence.hidden is not None]
        trees: list[Tree] = [[] for _ in sequences]
        most = min(MAX_NODES, limit // len(known)) if known else 0
        if not most:
            return trees
        chances = [chance for _, chance in self._ranked[:most]]
        places = self._ranked[: best_size(chances, len(sequences), profile)]
        heads = 1 + max(head for (_, head, _), _ in places)
        top = 1 + max(rank for (_, _, rank), _ in places)
        hidden = np.stack([h for i in known if (h := sequences[i].hidden) is not None])
        tokens = self._source.heads.propose(hidden, heads, top)[0].tolist()
        for i, own in zip(known, tokens, strict=True):
            trees[i] = [
                Node(own[head][rank], parent, chance, self._source.name, head + 1)
                for (parent, head, rank), chance in places
            ]
        return trees


def best_places(chances: Many[Many[float]], nodes: int) -> list[tuple[Place, float]]:
    """The likeliest nodes of a tree with mean chances [head][rank]: places and survivals, falling."""
    ranked: list[tuple[Place, float]] = []
    open_places: list[tuple[float, Place]] = []

    def branch(parent: int, head: int, survival: float) -> None:
        for rank, chance in enumerate(chances[head]):
            heappush(open_places, (-survival * chance, (parent, head, rank)))

    branch(ROOT, 0, 1.0)
    while open_places and len(ranked) < nodes:
        negative, place = heappop(open_places)
        ranked.append((place, -negative))
        if place[1] + 1 < len(chances):
            branch(len(ranked) - 1, place[1] + 1, -negative)
    return ranked


def best_size(survivals: Many[float], requests: int, profile: LatencyProfile) -> int:
    """Nodes a request, at least 1, for the most expected tokens a second at so many requests."""
    expected, best, size = 1.0, 0.0, 1
    for nodes, survival in enumerate(survivals, 1):
        expected += survival
        speed = expected / profile.seconds(requests * (1 + nodes))
        if speed > best:
            best, size = speed, nodes
    return size
