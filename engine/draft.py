"""Where draft tokens come from. A wrong draft costs time, never correctness."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Protocol

from engine.sequence import Sequence

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


class DraftSource(Protocol):
    """Guesses how running sequences go on. needs_hidden: looks at Sequence.hidden."""

    needs_hidden: bool

    def draft(self, sequences: Many[Sequence]) -> list[list[int]]:
        """For each sequence the tokens it may emit next, in order; an empty list guesses nothing."""
        ...


class NoDraft:
    """Plain decoding: the source that drafts nothing."""

    needs_hidden = False

    def draft(self, sequences: Many[Sequence]) -> list[list[int]]:
        return [[] for _ in sequences]
