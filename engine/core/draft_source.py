"""The interface of draft sources: they propose token trees. A wrong draft costs time, never correctness."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.core.sequence import SequenceState

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


class DraftSource(ABC):
    """Proposes the next tokens of running sequences.

    name: goes into Node.source. needs_hidden: ask the engine to set SequenceState.hidden in this step.
    min_path_probability: do not propose nodes below it; set by the caller, who knows what a row costs.
    """

    name: str = ""
    needs_hidden: bool = False
    min_path_probability: float = 0.0

    @abstractmethod
    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
        """For each sequence a tree of at most `limit` nodes; an empty tree for no proposal."""

    def observe(self, sequence: SequenceState, tree: Tree, accepted: list[int]) -> None:  # noqa: B027
        """Learn from a verified tree. accepted: its nodes that the model emitted, a path from the root."""

    def observe_latency(self, rows: int, seconds: float) -> None:  # noqa: B027
        """Learn the duration of the decode call that verified the last drafts."""


class NoDraft(DraftSource):
    """Plain decoding: proposes nothing."""

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:  # noqa: ARG002
        return [[] for _ in sequences]


def chain(tokens: Iterable[int], source: str, path_probability: float = 1.0) -> Tree:
    """A tree without branches."""
    return [Node(token, i - 1, path_probability, source, i + 1) for i, token in enumerate(tokens)]
