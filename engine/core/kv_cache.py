"""The book of the KV cache: which sequence holds which cells, kept in step with llama.cpp's own.

llama.cpp's unified cache holds a cell once however many sequences share it, so free space is
counted in distinct cells, not in tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Memory(Protocol):
    """The sequence operations of engine.llama.context.Context."""

    def share(self, source: int, target: int, length: int) -> None: ...
    def truncate(self, seq_id: int, length: int) -> None: ...
    def graft(self, source: int, target: int, first: int, end: int) -> None: ...
    def bury(self, seq_id: int, length: int) -> None: ...
    def unbury(self) -> None: ...


class KVCache:
    """Cells by sequence id. Every change goes to the memory and to the book in one call.

    ordered: attention sums over cells in the order they lie in the cache, so bit-identical results
    need every sequence's cells to lie in the order of its tokens, whatever ran before. llama.cpp
    fills holes from below, so then no hole may open: cells that are let go stay occupied (buried)
    until flush(), which needs an empty cache.
    """

    def __init__(self, memory: Memory, capacity: int, *, ordered: bool = False) -> None:
        self.capacity = capacity
        self.buried = 0
        self._memory = memory
        self.ordered = ordered
        self._cells: dict[int, list[int]] = {}
        self._owners = [0] * capacity  # how many sequences hold each cell
        self._free = list(range(capacity - 1, -1, -1))
        self._leaf_ids: dict[int, list[int]] = {}  # ids that stand for the leaves of a sequence's tree

    @property
    def used(self) -> int:
        return self.capacity - len(self._free)

    def length(self, seq_id: int) -> int:
        return len(self._cells.get(seq_id, ()))

    def append(self, seq_id: int, count: int) -> None:
        """Note `count` new cells, filled by the decode call that is about to run."""
        assert count <= len(self._free), "admission must keep the cache from overflowing"
        cells = self._cells.setdefault(seq_id, [])
        for _ in range(count):
            cell = self._free.pop()
            self._owners[cell] = 1
            cells.append(cell)

    def share(self, source: int, target: int, length: int) -> None:
        """Let an empty target hold the first `length` cells of source."""
        assert not self._cells.get(target), "a prefix is shared into an empty sequence only"
        shared = self._cells[source][:length]
        assert len(shared) == length, "the source holds fewer cells than asked for"
        self._memory.share(source, target, length)
        for cell in shared:
            self._owners[cell] += 1
        self._cells[target] = shared

    def branch(self, seq_id: int, leaf_ids: list[int]) -> None:
        """Let further ids see a sequence's cells: one for each leaf of its next tree but the first."""
        for leaf_id in leaf_ids:
            self._memory.share(seq_id, leaf_id, self.length(seq_id))
        self._leaf_ids[seq_id] = leaf_ids

    def commit(self, seq_id: int, root: int, accepted: list[int], paths: list[list[int]]) -> None:
        """Rewind a tree whose node cells start at `root`: keep those of the accepted path.

        paths: the nodes on the way to each leaf; the first leaf is the sequence's own id, the others
        are those given to branch().
        """
        ids = [seq_id, *self._leaf_ids.pop(seq_id, [])]
        common = [_common_prefix(path, accepted) for path in paths or [[]]]
        for leaf_id, length in zip(ids, common, strict=True):
            self._drop(leaf_id, root + length)
        carrier = common.index(len(accepted))
        if carrier:
            self._memory.graft(ids[carrier], seq_id, root + common[0], root + len(accepted))
        for leaf_id in ids[1:]:
            self._memory.truncate(leaf_id, 0)
        cells = self._cells[seq_id]
        nodes = cells[root:]
        cells[root:] = [nodes[i] for i in accepted]
        self._release(cell for i, cell in enumerate(nodes) if i not in accepted)

    def truncate(self, seq_id: int, length: int) -> None:
        """Keep the first `length` cells."""
        cells = self._cells.get(seq_id, [])
        if len(cells) > length:
            self._let_go(seq_id, length)

    def remove(self, seq_id: int) -> None:
        """Let go of every cell, also of those a failed decode may have left behind."""
        for leaf_id in self._leaf_ids.pop(seq_id, []):
            self._drop(leaf_id, 0)
        self._let_go(seq_id, 0)
        self._cells.pop(seq_id, None)

    def flush(self) -> None:
        """Make buried cells free again. Only when no sequence holds a cell."""
        assert not any(self._cells.values()), "buried cells are freed only in an empty cache"
        self._memory.unbury()
        self._owners = [0] * self.capacity
        self._free = list(range(self.capacity - 1, -1, -1))
        self.buried = 0

    def _let_go(self, seq_id: int, length: int) -> None:
        self._drop(seq_id, length)
        cells = self._cells.get(seq_id, [])
        self._release(cells[length:])
        del cells[length:]

    def _drop(self, seq_id: int, length: int) -> None:
        if self.ordered:
            self._memory.bury(seq_id, length)
        else:
            self._memory.truncate(seq_id, length)

    def _release(self, cells: Iterable[int]) -> None:
        for cell in cells:
            self._owners[cell] -= 1
            if self._owners[cell]:
                continue
            if self.ordered:
                self.buried += 1
            else:
                self._free.append(cell)


def _common_prefix(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
