"""Where draft tokens come from. A wrong draft costs time, never correctness."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Protocol

from engine.sequence import Sequence


class DraftSource(Protocol):
    """Guesses how running sequences go on."""

    def draft(self, sequences: Many[Sequence]) -> list[list[int]]:
        """For each sequence the tokens it may emit next, in order; an empty list guesses nothing."""
        ...


class NoDraft:
    """Plain decoding: the source that drafts nothing."""

    def draft(self, sequences: Many[Sequence]) -> list[list[int]]:
        return [[] for _ in sequences]
