"""Where running sequences keep their KV cells: each in a lane of its own, or together in one cache.

On a CPU, a row of a decode call visits every cell of its cache, those of other sequences too. With a lane (in
llama.cpp: a stream) for each sequence it visits its own alone. But llama.cpp splits a call over lanes into
several passes over the weights unless its rows are of consecutive lanes and equally many of each, and it
takes no token trees there. So many sequences run in lanes, few in the shared cache.

Every method changes llama.cpp's memory and the accounting together.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from heapq import heappop, heappush

import numpy as np

from engine.llama.context import Context, DecodeError
from engine.llama.model import Tokens
from engine.llama.saved_cells import SavedCells

log = logging.getLogger(__name__)

LANE_SLACK = 16  # cells of a lane for rows that complete a draft to the width of the others
NO_TOKENS: Tokens = np.empty(0, dtype=np.int32)


class Layout(ABC):
    """Sequences of one context, by sequence id.

    capacity: tokens of all sequences. largest: of the longest one that fits. equal_rows: whether a call has
    equally many rows of each sequence. trees: whether drafts may branch.
    """

    equal_rows = False
    trees = False

    def __init__(self, context: Context, seq_ids: int, capacity: int, largest: int) -> None:
        self.context = context
        self.capacity, self.largest = capacity, largest
        self._free = list(range(seq_ids))
        self._lengths: dict[int, int] = {}

    @property
    def used(self) -> int:
        """Tokens that are held."""
        return sum(self._lengths.values())

    def length(self, seq_id: int) -> int:
        return self._lengths[seq_id]

    def has_room(self, limit: int) -> bool:
        """Whether a sequence of at most so many tokens fits now."""
        return bool(self._free) and limit <= self.largest

    def take(self, limit: int, keep: int = 0) -> int:  # noqa: ARG002
        """The lowest free sequence id, now in use. limit: tokens at most. keep: of the cells of `left`."""
        seq_id = heappop(self._free)
        self._lengths[seq_id] = keep
        return seq_id

    @property
    def left(self) -> Tokens:
        """The tokens whose cells the id still has that take() would give."""
        return NO_TOKENS

    def leave(self, seq_id: int, tokens: Tokens) -> None:  # noqa: ARG002
        """Free a sequence id. tokens: whose cells may stay there, until take()."""
        self.release(seq_id)

    def release(self, seq_id: int) -> None:
        """Free a sequence id with all its cells, also those that a failed decode may have left."""
        self.context.truncate(seq_id, 0)
        del self._lengths[seq_id]
        heappush(self._free, seq_id)

    def append(self, seq_id: int, count: int) -> None:
        """Account for new cells, which the next decode call fills."""
        self._lengths[seq_id] += count

    def truncate(self, seq_id: int, length: int) -> None:
        """Keep the first `length` cells."""
        if self._lengths[seq_id] > length:
            self.context.truncate(seq_id, length)
            self._lengths[seq_id] = length

    @abstractmethod
    def copy(self, source: int, target: int, length: int) -> None:
        """Give the first cells of a sequence to one without cells, too."""

    def rewind(self, seq_id: int, length: int, accepted: list[int], paths: list[list[int]]) -> None:  # noqa: ARG002
        """Undo a verified draft: keep the cells of the accepted nodes, free those of all others.

        length: tokens before the draft. accepted: nodes. paths: the nodes on the path to each leaf.
        """
        self.truncate(seq_id, length + len(accepted))

    def save(self, seq_id: int) -> SavedCells:
        return self.context.save(seq_id)

    def restore(self, saved: SavedCells, seq_id: int, length: int) -> int:
        """Give the first `length` saved cells to a sequence without cells; returns how many it got.

        None, if all that were saved do not fit.
        """
        try:
            self.context.restore(saved, seq_id)
        except DecodeError as error:
            log.warning("saved cells are computed again: %s", error.message)
            return 0
        self.context.truncate(seq_id, length)
        self._lengths[seq_id] = length
        return length

    @abstractmethod
    def fits(self, cells: int) -> bool:
        """Whether restore() has room for so many saved cells."""


class SharedLayout(Layout):
    """One cache for all sequences. Cells for the whole of each are reserved, so none is ever thrown out.

    alone: only one sequence at a time, whose cells then lie in the order of its tokens. leaf_ids: of token
    trees, after the sequences' own ids.
    """

    def __init__(
        self, context: Context, *, seq_ids: int, leaf_ids: range, capacity: int, alone: bool
    ) -> None:
        super().__init__(context, 1 if alone else seq_ids, capacity, capacity)
        self.leaf_ids = leaf_ids
        self.trees = bool(leaf_ids) and not alone
        self._reserved: dict[int, int] = {}
        self._branches: dict[int, list[int]] = {}  # leaf ids of each sequence's draft

    @property
    def spare(self) -> int:
        return self.largest - sum(self._reserved.values())

    def has_room(self, limit: int) -> bool:
        return bool(self._free) and limit <= self.spare

    def take(self, limit: int, keep: int = 0) -> int:
        seq_id = super().take(limit, keep)
        self._reserved[seq_id] = limit
        return seq_id

    def release(self, seq_id: int) -> None:
        for leaf_id in self._branches.pop(seq_id, []):
            self.context.truncate(leaf_id, 0)
        del self._reserved[seq_id]
        super().release(seq_id)

    def fits(self, cells: int) -> bool:
        return cells <= self.capacity - self.used

    def copy(self, source: int, target: int, length: int) -> None:
        self.context.share(source, target, length)
        self._lengths[target] = length

    def branch(self, seq_id: int, leaf_ids: list[int]) -> None:
        """Share a sequence's cells with the ids of its next tree's leaves, all but the first leaf."""
        for leaf_id in leaf_ids:
            self.context.share(seq_id, leaf_id, self.length(seq_id))
        self._branches[seq_id] = leaf_ids

    def rewind(self, seq_id: int, length: int, accepted: list[int], paths: list[list[int]]) -> None:
        """As in Layout. The first leaf has the sequence's own id, the others the ids given to branch()."""
        ids = [seq_id, *self._branches.pop(seq_id, [])]
        common = [_common_prefix(path, accepted) for path in paths or [[]]]
        for leaf_id, depth in zip(ids, common, strict=True):
            self.context.truncate(leaf_id, length + depth)
        leaf = common.index(len(accepted))  # a leaf below the whole accepted path
        if leaf:
            self.context.share_range(ids[leaf], seq_id, length + common[0], length + len(accepted))
        for leaf_id in ids[1:]:
            self.context.truncate(leaf_id, 0)
        self._lengths[seq_id] = length + len(accepted)


class LaneLayout(Layout):
    """A lane of `cells` for each sequence; the lowest free one is taken first."""

    equal_rows = True

    def __init__(self, context: Context, *, lanes: int, cells: int) -> None:
        super().__init__(context, lanes, lanes * (cells - LANE_SLACK), cells - LANE_SLACK)
        self.lanes = lanes
        self._left: dict[int, Tokens] = {}  # by free lane: a call visits only the lanes of its rows

    def take(self, limit: int, keep: int = 0) -> int:
        seq_id = super().take(limit, keep)
        if len(self._left.pop(seq_id, NO_TOKENS)) > keep:
            self.context.truncate(seq_id, keep)
        return seq_id

    @property
    def left(self) -> Tokens:
        return self._left.get(self._free[0], NO_TOKENS) if self._free else NO_TOKENS

    def leave(self, seq_id: int, tokens: Tokens) -> None:
        self.truncate(seq_id, len(tokens))
        del self._lengths[seq_id]
        heappush(self._free, seq_id)
        self._left[seq_id] = tokens

    def fits(self, cells: int) -> bool:
        return cells <= self.largest

    def copy(self, source: int, target: int, length: int) -> None:
        self.context.copy_stream(source, target)
        self.context.truncate(target, length)
        self._lengths[target] = length

    def gap(self) -> tuple[int, int] | None:
        """(highest lane in use, lowest free lane) while the lanes in use are not consecutive."""
        last = max(self._lengths, default=-1)
        return (last, self._free[0]) if self._free and self._free[0] < last else None


def _common_prefix(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
