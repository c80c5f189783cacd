"""The draft source of Medusa heads: the likeliest paths through their candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import product
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.core.draft_source import DraftSource
from engine.core.sequence import SequenceState
from engine.core.token_tree import ROOT, Node, Tree
from engine.medusa.calibration import RANKS, Calibration

MIN_PATH_PROBABILITY = 0.02  # below it a row does not pay even on a GPU, where rows cost next to nothing


class Heads(Protocol):
    """Heads ready to run: as served (engine/medusa/onnx/heads.py), or while they are trained.

    propose: token ids and probabilities of the `top` likeliest tokens of heads first..heads-1 for states
    [R, width], best first; both [R, heads - first, top].
    """

    @property
    def heads(self) -> int: ...

    @property
    def metadata(self) -> dict[str, str]: ...

    def propose(
        self, hidden: NDArray[np.float32], heads: int, top: int, first: int = 0
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]: ...


@dataclass(frozen=True, slots=True)
class _Proposal:
    """Candidates and probabilities [head][rank] for the positions from `start` on in a sequence.

    expected: tokens that are taken for granted; the heads of these positions have no say.
    """

    start: int
    expected: list[int]
    tokens: list[list[int]]
    probabilities: list[list[float]]
    chances: list[list[list[float]]]  # [head][beside][rank], see Calibration


class HeadSource(DraftSource):
    """Medusa heads as a draft source. Sequences without a hidden state get no tree.

    Heads that could only give nodes below min_path_probability do not run.
    """

    name = "medusa"
    needs_hidden = True
    trees = True

    def __init__(self, heads: Heads, top: int = RANKS) -> None:
        """top: candidates a head. Raises HeadsLoadError for a calibration that does not fit the heads."""
        self.min_path_probability = MIN_PATH_PROBABILITY
        self.heads, self._top = heads, top
        # Sampled tokens match less often than greedy ones, and those after expected tokens, which the heads
        # do not know of, less often than others; so each kind has its own counts.
        kinds = product((False, True), repeat=2)
        self._calibrations = {(sampled, after): Calibration(heads.heads) for sampled, after in kinds}
        if counts := heads.metadata.get("calibration"):
            for sampled in (False, True):
                self._calibrations[sampled, False].start_from(counts)

    @property
    def mean_chances(self) -> list[list[float]]:
        """Chances [head][rank] that a candidate is right when the path above it is."""
        return self._calibrations[False, False].means()

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
        """For each sequence its likeliest nodes, at most `limit`, the likeliest first."""
        for sequence in sequences:
            self._score(sequence)
        trees: list[Tree] = [[] for _ in sequences]
        known = [
            i
            for i, sequence in enumerate(sequences)
            if sequence.hidden is not None and len(sequence.expected) < self.heads.heads
        ]
        if known and limit > 0:
            for i, proposal in zip(known, self._propose([sequences[i] for i in known], limit), strict=True):
                trees[i] = self._tree(proposal, limit, sequences[i].expected)
                self._remember(sequences[i], proposal)
        return trees

    def observe(self, sequence: SequenceState, tree: Tree, accepted: list[int]) -> None:
        """Nothing: what was emitted, once it is in the sequence, also tells of candidates never verified."""

    def _propose(self, sequences: Sequence[SequenceState], depth: int) -> list[_Proposal]:
        """Head after head, each for the sequences where the likeliest path so far is worth a row."""
        hidden = np.stack([s.hidden for s in sequences if s.hidden is not None])
        kinds = [(s.params.temperature > 0, bool(s.expected)) for s in sequences]
        proposals = [_Proposal(s.length, [n.token for n in s.expected], [], [], []) for s in sequences]
        best = np.array([s.expected[-1].path_probability if s.expected else 1.0 for s in sequences])
        expected = np.array([len(s.expected) for s in sequences])
        rows = np.arange(len(sequences))
        # No more tokens than that can be so likely at once.
        top = min(self._top, max(1, int(1 / max(self.min_path_probability, 1e-3))))
        for head in range(min(depth, self.heads.heads)):
            tokens, probabilities = self.heads.propose(hidden[rows], head + 1, top, first=head)
            chances = np.empty((len(rows), 1, 2, probabilities.shape[-1]))
            for kind in set(kinds):
                of_kind = [kinds[row] == kind for row in rows]
                chances[of_kind] = self._calibrations[kind].chances(head, probabilities[of_kind])
            for index, row in enumerate(rows):
                proposals[row].tokens.extend(tokens[index].tolist())
                proposals[row].probabilities.extend(probabilities[index].tolist())
                proposals[row].chances.extend(chances[index].tolist())
            best[rows] *= np.where(head < expected[rows], 1.0, chances[:, 0, 0].max(axis=-1))
            rows = rows[best[rows] >= self.min_path_probability]
            if not len(rows):
                break
        return proposals

    def _tree(self, proposal: _Proposal, limit: int, expected: Tree) -> Tree:
        """Best first: no node left out is likelier than one taken, and a child follows its parent.

        It goes on from `expected`, with the heads of the tokens after it.
        """
        tree: Tree = [*expected]
        first = len(expected)
        if first >= len(proposal.tokens):
            return []
        frontier: list[tuple[float, int, int, int, int]] = []  # -path_probability, head, rank, parent, beside

        def branch(parent: int, head: int, beside: int, path_probability: float) -> None:
            for rank, chance in enumerate(proposal.chances[head][beside]):
                if path_probability * chance >= self.min_path_probability:
                    heappush(frontier, (-path_probability * chance, head, rank, parent, beside))

        branch(first - 1 if first else ROOT, first, 0, tree[-1].path_probability if first else 1.0)
        while frontier and len(tree) < limit:
            negative, head, rank, parent, beside = heappop(frontier)
            tree.append(Node(proposal.tokens[head][rank], parent, -negative, self.name, head + 1))
            if head + 1 < len(proposal.tokens):
                branch(len(tree) - 1, head + 1, int(beside or rank > 0), -negative)
        return tree

    # Learning from what was emitted, whether or not it was verified

    def _remember(self, sequence: SequenceState, proposal: _Proposal) -> None:
        waiting: list[_Proposal] = sequence.source_state.get(self, [])
        waiting = [p for p in waiting if p.start != proposal.start]  # a failed step is run again
        sequence.source_state[self] = [*waiting, proposal]

    def _score(self, sequence: SequenceState) -> None:
        """Count the proposals for places that all have their tokens now."""
        proposals: list[_Proposal] | None = sequence.source_state.get(self)
        if not proposals:
            return
        sampled, waiting = sequence.params.temperature > 0, []
        for p in proposals:
            end, first = p.start + len(p.tokens), len(p.expected)
            emitted = sequence.tokens[p.start : end].tolist()
            if end > sequence.length:
                waiting.append(p)
            elif emitted[:first] == p.expected:
                self._calibrations[sampled, first > 0].score(p.tokens, p.probabilities, emitted, first)
        sequence.source_state[self] = waiting
