"""The interface of draft sources: they propose token trees. A wrong draft costs time, never correctness."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from engine.core.sequence import SequenceState
from engine.core.token_tree import Tree


class DraftSource(ABC):
    """Proposes the next tokens of running sequences.

    The engine has one source, normally speculative.controller.Speculation, which combines the others. Sources
    learn in draft(), from the tokens that came since their last proposal.

    name: goes into Node.source. needs_hidden: ask the engine to set SequenceState.hidden in this step.
    min_path_probability: do not propose nodes below it; set by the caller, who knows what a row costs.
    trees: its drafts may branch, so that it gains from a layout that takes trees. leads: its drafts are
    chains that nearly always hold; they become SequenceState.expected, and the sources after it go on from
    there, with a tree that begins with them.
    """

    name: str = ""
    leads: bool = False
    trees: bool = False
    needs_hidden: bool = False
    min_path_probability: float = 0.0

    def serves(self, sequence: SequenceState) -> bool:  # noqa: ARG002
        """Whether it could ever propose something for this sequence; otherwise it is not asked."""
        return True

    @abstractmethod
    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
        """For each sequence a tree, empty for no proposal.

        limit: the free rows of the whole call. A tree of more nodes than are left is cut to its first ones.
        """

    def observe(self, sequence: SequenceState, tree: Tree, accepted: list[int]) -> None:  # noqa: B027
        """Learn from a verified tree, before its tokens are committed. Not called for an empty tree.

        accepted: its nodes whose tokens the model sampled, a path from the root. One of these tokens may end
        the request; those after it are not emitted.
        """

    def observe_latency(self, rows: int, seconds: float) -> None:  # noqa: B027
        """Learn the duration of the decode call that verified the last drafts: rows with drafts, seconds.

        Not called if the call failed, or had rows of unfinished prompts too.
        """


class PlainDecoding(DraftSource):
    """Plain decoding: proposes nothing."""

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:  # noqa: ARG002
        return [[] for _ in sequences]
