"""A static token tree, as in the Medusa paper (arXiv 2401.10774), for decoding "medusa"."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import accumulate

from engine.core.sequence import SequenceState
from engine.core.token_tree import ROOT, Node, Tree
from engine.medusa.calibration import RANKS
from engine.medusa.medusa_source import HeadSource, Path, Proposal
from engine.speculative.latency_model import LatencyProfile

MAX_NODES = 64  # from here on even a GPU gains little
RANKED_CALLS = 128  # after which the places are ranked anew
HEAD_SHARE = 0.1  # weight of the last call in the mean time of a head

TreeSlot = tuple[int, int, int]  # (parent slot, head, rank of the head's candidate)


class StaticTrees:
    """Fills the same tree with each request's candidates, whatever their probabilities.

    Its places are the likeliest by how often candidates have been right, in training and since. Its size is
    the one with the most expected tokens a second, by measured times of calls and of heads: on many CPUs a
    chain of one.
    """

    def __init__(self, source: HeadSource) -> None:
        self._source = source
        self._calls = 0
        self._rank()
        self._head_s = 0.0  # decayed mean of a head's call

    def _rank(self) -> None:
        chances = self._source.mean_chances
        self._ranked = best_nodes(chances, MAX_NODES)
        self._chain = best_nodes([[ranks[:1] for ranks in kinds] for kinds in chances], MAX_NODES)

    def force(
        self, sequences: Sequence[SequenceState], profile: LatencyProfile, rows: int, limit: int
    ) -> list[Tree]:
        self._calls += 1
        if self._calls % RANKED_CALLS == 0:
            self._rank()
        known = [i for i, s in enumerate(sequences) if s.hidden is not None and s.remaining > 1]
        trees: list[Tree] = [[] for _ in sequences]
        layout = sequences[known[0]].layout if known else None
        ranked = self._ranked if layout is None or layout.trees else self._chain
        of_a_node = rows if layout is not None and layout.equal_rows else len(known)
        slots = ranked[: limit // of_a_node] if known else []
        if not slots:
            return trees

        heads = list(accumulate((head + 1 for (_, head, _), _ in slots), max))  # that so many nodes ask

        def seconds(nodes: int) -> float:
            return profile.seconds(rows + of_a_node * nodes) + heads[nodes - 1] * self._head_s

        nodes = best_size([len(known) * chance for _, chance in slots], rows, seconds)
        slots = slots[:nodes]
        began = time.perf_counter()
        for i in known:
            self._source.learn(sequences[i])
        filled = self._fill([sequences[i] for i in known], slots)
        took = (time.perf_counter() - began) / heads[nodes - 1]
        self._head_s += HEAD_SHARE * (took - self._head_s)
        for i, tokens in zip(known, filled, strict=True):
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
        proposals = [Proposal.from_root(sequence) for sequence in sequences]
        for head in range(1 + max(head for _, head, _ in places)):
            level = [(at, parent, rank) for at, (parent, of, rank) in enumerate(places) if of == head]
            parents = list(dict.fromkeys(parent for _, parent, _ in level))
            if not self._source.heads.sees_path:
                del parents[1:]
            rows = [(s, path[parent]) for s, path in zip(sequences, paths, strict=True) for parent in parents]
            asked = self._source.ask(head, RANKS, rows)  # all, to count how often each is right
            ids, shares = (table.tolist() for table in asked)
            for i, (tokens, path) in enumerate(zip(filled, paths, strict=True)):
                places_asked = range(i * len(parents), (i + 1) * len(parents))
                own = {parent: ids[at] for parent, at in zip(parents, places_asked, strict=True)}
                for parent, at in zip(parents, places_asked, strict=True):
                    proposals[i].asked[self._source.key(path[parent])] = ids[at], shares[at]
                for at, parent, rank in level:
                    tokens[at] = own.get(parent, own[parents[0]])[rank]
                    path[at] = (*path[parent], tokens[at])
        for sequence, proposal in zip(sequences, proposals, strict=True):
            self._source.remember(sequence, proposal)
        return filled


def best_nodes(chances: Sequence[Sequence[Sequence[float]]], nodes: int) -> list[tuple[TreeSlot, float]]:
    """The likeliest nodes of a tree and their path probabilities, falling.

    chances: means [head][beside][rank], beside as in Calibration.
    """
    ranked: list[tuple[TreeSlot, float]] = []
    frontier: list[tuple[float, TreeSlot, bool]] = []

    def branch(parent: int, head: int, beside: bool, path_probability: float) -> None:
        for rank, chance in enumerate(chances[head][beside]):
            heappush(frontier, (-path_probability * chance, (parent, head, rank), beside or rank > 0))

    branch(ROOT, 0, False, 1.0)
    while frontier and len(ranked) < nodes:
        negative, slot, beside = heappop(frontier)
        ranked.append((slot, -negative))
        if slot[1] + 1 < len(chances):
            branch(len(ranked) - 1, slot[1] + 1, beside, -negative)
    return ranked


def best_size(gains: Sequence[float], requests: int, seconds: Callable[[int], float]) -> int:
    """Number of nodes, at least 1, that gives the most expected tokens a second.

    gains: expected tokens of each further node. requests: tokens without any. seconds: of a step, by nodes.
    """
    expected, best, size = float(requests), 0.0, 1
    for nodes, gain in enumerate(gains, 1):
        expected += gain
        speed = expected / seconds(nodes)
        if speed > best:
            best, size = speed, nodes
    return size
