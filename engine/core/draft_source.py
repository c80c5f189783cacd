"""Where draft tokens come from. A wrong draft costs time, never correctness."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass

from engine.core.sequence import Sequence

ROOT = -1


@dataclass(frozen=True, slots=True)
class Node:
    """One candidate token of a token tree.

    parent: index in the same tree, ROOT below the last accepted token; parents come before children.
    depth: 1 below the root. survival: calibrated probability that the model emits the whole path to it.
    source: name of the draft source, for statistics.
    """

    token: int
    parent: int
    survival: float
    source: str
    depth: int


Tree = list[Node]  # siblings hold different tokens


class DraftSource(ABC):
    """Guesses how running sequences go on.

    needs_hidden: looks at Sequence.hidden after the step that its last draft() was for.
    min_survival: nodes below it are not worth a row, which whoever knows the cost of rows sets.
    """

    name: str = ""  # on its nodes
    needs_hidden: bool = False
    min_survival: float = 0.0

    @abstractmethod
    def draft(self, sequences: Many[Sequence], limit: int) -> list[Tree]:
        """For each sequence a tree of at most `limit` nodes; an empty one guesses nothing."""

    def observe(self, sequence: Sequence, tree: Tree, accepted: list[int]) -> None:  # noqa: B027
        """Hear which nodes of a verified tree the model emitted: a path from the root."""

    def timed(self, rows: int, seconds: float) -> None:  # noqa: B027
        """Hear how long the call took that verified the last draft."""


class NoDraft(DraftSource):
    """Plain decoding: the source that drafts nothing."""

    def draft(self, sequences: Many[Sequence], limit: int) -> list[Tree]:  # noqa: ARG002
        return [[] for _ in sequences]


def chain(tokens: Iterable[int], source: str, survival: float = 1.0) -> Tree:
    """A tree without branches."""
    return [Node(token, i - 1, survival, source, i + 1) for i, token in enumerate(tokens)]
