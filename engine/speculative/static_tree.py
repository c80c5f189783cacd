"""A static token tree, as in the Medusa paper: used by decoding "medusa", for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from engine.core.sequence import SequenceState
from engine.core.token_tree import ROOT, Node, Tree
from engine.medusa.medusa_source import HeadSource, Path
from engine.speculative.latency_model import LatencyProfile

MAX_NODES = 64  # from here on even a GPU gains little

TreeSlot = tuple[int, int, int]  # (parent slot, head, rank of the head's candidate)


class StaticTrees:
    """Fills the same tree with each request's candidates, whatever their probabilities."""

    def __init__(self, source: HeadSource) -> None:
        self._source = source
        self._ranked = best_nodes(source.mean_chances, MAX_NODES)

    def force(self, sequences: Sequence[SequenceState], profile: LatencyProfile, limit: int) -> list[Tree]:
        known = [i for i, sequence in enumerate(sequences) if sequence.hidden is not None]
        trees: list[Tree] = [[] for _ in sequences]
        most = min(MAX_NODES, limit // len(known)) if known else 0
        if not most:
            return trees
        chances = [chance for _, chance in self._ranked[:most]]
        slots = self._ranked[: best_size(chances, len(sequences), profile)]
        for i, tokens in zip(known, self._fill([sequences[i] for i in known], slots), strict=True):
            trees[i] = [
                Node(token, parent, chance, self._source.name, head + 1)
                for token, ((parent, head, _), chance) in zip(tokens, slots, strict=True)
            ]
        return trees

    def _fill(
        self, sequences: Sequence[SequenceState], slots: Sequence[tuple[TreeSlot, float]]
    ) -> list[list[int]]:
        """The token of each slot, for each sequence; a call of a head for all slots of a depth."""
        places = [slot for slot, _ in slots]
        filled = [[0] * len(places) for _ in sequences]
        paths: list[dict[int, Path]] = [{ROOT: ()} for _ in sequences]
        for head in range(1 + max(head for _, head, _ in places)):
            level = [(at, parent, rank) for at, (parent, of, rank) in enumerate(places) if of == head]
            parents = list(dict.fromkeys(parent for _, parent, _ in level))
            if not self._source.heads.sees_path:
                del parents[1:]
            rows = [(s, path[parent]) for s, path in zip(sequences, paths, strict=True) for parent in parents]
            ids = self._source.ask(head, 1 + max(rank for _, _, rank in level), rows)[0].tolist()
            for i, (tokens, path) in enumerate(zip(filled, paths, strict=True)):
                own = dict(zip(parents, ids[i * len(parents) :], strict=False))
                for at, parent, rank in level:
                    tokens[at] = own.get(parent, own[parents[0]])[rank]
                    path[at] = (*path[parent], tokens[at])
        return filled


def best_nodes(chances: Sequence[Sequence[float]], nodes: int) -> list[tuple[TreeSlot, float]]:
    """The likeliest nodes of a tree and their path probabilities, falling, by mean chances [head][rank]."""
    ranked: list[tuple[TreeSlot, float]] = []
    frontier: list[tuple[float, TreeSlot]] = []

    def branch(parent: int, head: int, path_probability: float) -> None:
        for rank, chance in enumerate(chances[head]):
            heappush(frontier, (-path_probability * chance, (parent, head, rank)))

    branch(ROOT, 0, 1.0)
    while frontier and len(ranked) < nodes:
        negative, slot = heappop(frontier)
        ranked.append((slot, -negative))
        if slot[1] + 1 < len(chances):
            branch(len(ranked) - 1, slot[1] + 1, -negative)
    return ranked


def best_size(path_probabilities: Sequence[float], requests: int, profile: LatencyProfile) -> int:
    """Number of nodes a request, at least 1, that gives the most expected tokens a second."""
    expected, best, size = 1.0, 0.0, 1
    for nodes, path_probability in enumerate(path_probabilities, 1):
        expected += path_probability
        speed = expected / profile.seconds(requests * (1 + nodes))
        if speed > best:
            best, size = speed, nodes
    return size
