"""The draft source of heads: the likeliest paths through their candidates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.core.draft_source import DraftSource
from engine.core.sequence import SequenceState
from engine.core.token_tree import ROOT, Node, Tree
from engine.medusa.calibration import RANKS, Calibration

MIN_PATH_PROBABILITY = 0.02  # below it a row does not pay even on a GPU, where rows cost next to nothing

Path = tuple[int, ...]  # draft tokens from below the root


class Heads(Protocol):
    """Heads ready to run: as served (engine/medusa/onnx/heads.py), or while they are trained.

    sees_path: whether guesses depend on the tokens before them. propose: token ids and probabilities of the
    `top` likeliest tokens of heads first..heads-1 for states [R, width], best first; both
    [R, heads - first, top]. path [R, heads]: the token that each state gave, then draft tokens.
    """

    @property
    def heads(self) -> int: ...

    @property
    def metadata(self) -> dict[str, str]: ...

    @property
    def sees_path(self) -> bool: ...

    def propose(
        self,
        hidden: NDArray[np.float32],
        heads: int,
        top: int,
        first: int = 0,
        path: NDArray[np.int32] | None = None,
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]: ...


@dataclass(slots=True)
class Proposal:
    """A tree as it grows, level by level, and what the heads said.

    kind: which counts it belongs to: sampled, after expected tokens. branches: whether it may.
    start: position of its first token in the sequence. tree: begins with `first` nodes that are taken for
    granted. paths, beside: of each node; beside as in Calibration. open: nodes whose children come next.
    asked: candidates and probabilities of the children, by path, or by depth if heads do not see the path.
    """

    kind: tuple[bool, bool]
    branches: bool
    start: int
    first: int
    tree: Tree
    paths: list[Path]
    beside: list[bool]
    open: list[int]
    asked: dict[Path | int, tuple[list[int], list[float]]] = field(default_factory=dict)

    @classmethod
    def begin(cls, sequence: SequenceState) -> Proposal:
        tree = [*sequence.expected]
        tokens = tuple(node.token for node in tree)
        paths = [tokens[: depth + 1] for depth in range(len(tree))]
        root = len(tree) - 1 if tree else ROOT
        layout, first = sequence.layout, len(tree)
        kind = sequence.params.temperature > 0, first > 0
        branches = layout is None or layout.trees
        return cls(kind, branches, sequence.length, first, tree, paths, [False] * first, [root])

    @classmethod
    def from_root(cls, sequence: SequenceState) -> Proposal:
        """One that takes no node for granted."""
        return cls((sequence.params.temperature > 0, False), True, sequence.length, 0, [], [], [], [ROOT])

    def path(self, node: int) -> Path:
        return () if node == ROOT else self.paths[node]

    def chance(self, node: int) -> float:
        return 1.0 if node == ROOT else self.tree[node].path_probability

    def add(self, node: Node, beside: bool) -> None:
        self.open.append(len(self.tree))
        self.tree.append(node)
        self.paths.append((*self.path(node.parent), node.token))
        self.beside.append(beside)

    def likeliest(self, limit: int) -> Tree:
        """At most `limit` nodes: none that is left out is likelier than one taken. Empty without new ones."""
        if len(self.tree) == self.first:
            return []
        places = sorted(range(len(self.tree)), key=lambda i: -self.tree[i].path_probability)[:limit]
        new = {ROOT: ROOT} | {place: i for i, place in enumerate(places)}
        nodes = [(self.tree[place], new[self.tree[place].parent]) for place in places]
        return [node if node.parent == parent else replace(node, parent=parent) for node, parent in nodes]


class HeadSource(DraftSource):
    """Heads as a draft source. Sequences without a hidden state get no tree.

    Heads that could only give nodes below min_path_probability do not run.
    """

    name = "medusa"
    needs_hidden = True
    trees = True

    def __init__(self, heads: Heads, top: int = RANKS) -> None:
        """top: candidates a head. Raises HeadsLoadError for a calibration that does not fit the heads."""
        self.min_path_probability = MIN_PATH_PROBABILITY
        self.heads, self._top = heads, top
        # Sampled tokens match less often than greedy ones, and those after expected tokens less often than
        # others; so each kind has its own counts.
        kinds = product((False, True), repeat=2)
        self._calibrations = {kind: Calibration(heads.heads) for kind in kinds}
        if counts := heads.metadata.get("calibration"):
            for sampled in (False, True):
                self._calibrations[sampled, False].start_from(counts)

    @property
    def mean_chances(self) -> list[list[list[float]]]:
        """Chances [head][beside][rank] that a candidate is right when the path above it is."""
        return self._calibrations[False, False].means()

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
        """For each sequence its likeliest nodes, at most `limit`, the likeliest first."""
        for sequence in sequences:
            self.learn(sequence)
        proposals = [None if s.hidden is None else Proposal.begin(s) for s in sequences]
        for head in range(min(limit, self.heads.heads)):
            both = zip(sequences, proposals, strict=True)
            level = [(s, p) for s, p in both if p and p.open and p.first <= head < s.remaining - 1]
            if level:
                self._grow(level, head, limit)
        trees: list[Tree] = []
        for sequence, proposal in zip(sequences, proposals, strict=True):
            trees.append(proposal.likeliest(limit) if proposal else [])
            if proposal and proposal.asked:
                self.remember(sequence, proposal)
        return trees

    def observe(self, sequence: SequenceState, tree: Tree, accepted: list[int]) -> None:
        """Nothing: what was emitted, once it is in the sequence, also tells of candidates never verified."""

    def ask(
        self, head: int, top: int, rows: Sequence[tuple[SequenceState, Path]]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """A head's candidates and their probabilities [rows, top]. rows: sequences, and the path so far."""
        hidden = np.stack([s.hidden for s, _ in rows if s.hidden is not None])
        path = None
        if self.heads.sees_path:
            path = np.array([(s.tokens[s.length - 1], *above) for s, above in rows], dtype=np.int32)
        tokens, probabilities = self.heads.propose(hidden, head + 1, top, first=head, path=path)
        return tokens[:, 0], probabilities[:, 0]

    def _grow(self, level: Sequence[tuple[SequenceState, Proposal]], head: int, limit: int) -> None:
        """Add the children of all open nodes, in one call."""
        # No more tokens than that can be so likely at once.
        top = min(self._top, max(1, int(1 / max(self.min_path_probability, 1e-3))))
        each = slice(None) if self.heads.sees_path else slice(1)
        rows = [(s, p, node) for s, p in level for node in p.open[each]]
        tokens, probabilities = self.ask(head, top, [(s, p.path(node)) for s, p, node in rows])
        children: dict[int, list[tuple[Node, bool]]] = {id(proposal): [] for _, proposal in level}
        for (_, proposal, node), ids, shares in zip(
            rows, tokens.tolist(), probabilities.tolist(), strict=True
        ):
            proposal.asked[self.key(proposal.path(node))] = ids, shares
            for parent in [node] if self.heads.sees_path else proposal.open:
                children[id(proposal)] += self._children(proposal, parent, head, ids, shares)
        for _, proposal in level:
            self._keep(proposal, children[id(proposal)], limit)

    def _children(
        self, proposal: Proposal, parent: int, head: int, ids: list[int], shares: list[float]
    ) -> Iterator[tuple[Node, bool]]:
        """The candidates below a node that are likely enough, and whether each is beside the best ones."""
        beside, above = parent != ROOT and proposal.beside[parent], proposal.chance(parent)
        chances = self._calibrations[proposal.kind].chances(head, beside, shares)
        for rank, (token, chance) in enumerate(zip(ids, chances, strict=True)):
            if (path_probability := above * chance) >= self.min_path_probability:
                yield Node(token, parent, path_probability, self.name, head + 1), beside or rank > 0

    def _keep(self, proposal: Proposal, children: list[tuple[Node, bool]], limit: int) -> None:
        """Open the children that are among the likeliest `limit` nodes: the likeliest one for a chain."""
        children.sort(key=lambda child: -child[0].path_probability)
        before = [node.path_probability for node in proposal.tree]
        proposal.open = []
        for place, (child, beside) in enumerate(children[: limit if proposal.branches else 1]):
            if place + sum(chance >= child.path_probability for chance in before) < limit:
                proposal.add(child, beside)

    def key(self, path: Path) -> Path | int:
        """In Proposal.asked."""
        return path if self.heads.sees_path else len(path)

    # Learning from what was emitted, whether or not it was verified

    def remember(self, sequence: SequenceState, proposal: Proposal) -> None:
        """For learn(), once the sequence has the tokens that were guessed."""
        waiting: list[Proposal] = sequence.source_state.get(self, [])
        waiting = [p for p in waiting if p.start != proposal.start]  # a failed step is run again
        sequence.source_state[self] = [*waiting, proposal]

    def learn(self, sequence: SequenceState) -> None:
        """Count the proposals for places that all have their tokens now."""
        proposals: list[Proposal] | None = sequence.source_state.get(self)
        if not proposals:
            return
        waiting = []
        for p in proposals:
            end = p.start + p.first + len({len(key) if isinstance(key, tuple) else key for key in p.asked})
            if end > sequence.length:
                waiting.append(p)
            else:
                self._count(p, sequence.tokens[p.start : end].tolist())
        sequence.source_state[self] = waiting

    def _count(self, proposal: Proposal, emitted: list[int]) -> None:
        first = proposal.first
        if first and tuple(emitted[:first]) != proposal.paths[first - 1]:
            return
        candidates: list[list[int]] = [[] for _ in range(first)]
        probabilities: list[list[float]] = [[] for _ in range(first)]
        for depth in range(first, len(emitted)):
            asked = proposal.asked.get(self.key(tuple(emitted[:depth])))
            if asked is None:
                break
            candidates.append(asked[0])
            probabilities.append(asked[1])
        self._calibrations[proposal.kind].score(candidates, probabilities, emitted, first)
