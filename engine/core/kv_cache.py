"""Cell accounting of the KV cache: which sequence holds which cells, in step with llama.cpp's own state.

In llama.cpp's unified cache a cell may belong to several sequences, so free space is counted in distinct
cells, not in tokens. Cells have reference counts here; their numbers are ours, not llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Memory(Protocol):
    """The sequence operations of engine.llama.context.Context."""

    def share(self, source: int, target: int, length: int) -> None: ...
    def truncate(self, seq_id: int, length: int) -> None: ...
    def share_range(self, source: int, target: int, first: int, end: int) -> None: ...
    def retire(self, seq_id: int, length: int) -> None: ...
    def free_retired(self) -> None: ...


class KVCache:
    """The cells of each sequence id. Every method changes llama.cpp's memory and the accounting together.

    ordered: attention sums over cells in cache order, so bit-identical results need every sequence's cells in
    the order of its tokens. llama.cpp fills holes from the start of the cache, so no hole may open: freed
    cells stay occupied (retired) until flush(), which needs an empty cache.
    """

    def __init__(self, memory: Memory, capacity: int, *, ordered: bool = False) -> None:
        self.capacity = capacity
        self.retired = 0
        self._memory = memory
        self.ordered = ordered
        self._cells: dict[int, list[int]] = {}
        self._ref_counts = [0] * capacity  # sequences that hold each cell
        self._free = list(range(capacity - 1, -1, -1))
        self._leaf_ids: dict[int, list[int]] = {}  # of each sequence's draft tree

    @property
    def used(self) -> int:
        return self.capacity - len(self._free)

    def length(self, seq_id: int) -> int:
        return len(self._cells.get(seq_id, ()))

    def append(self, seq_id: int, count: int) -> None:
        """Account for `count` new cells, which the next decode call fills."""
        assert count <= len(self._free), "admission must keep the cache from overflowing"
        cells = self._cells.setdefault(seq_id, [])
        for _ in range(count):
            cell = self._free.pop()
            self._ref_counts[cell] = 1
            cells.append(cell)

    def share(self, source: int, target: int, length: int) -> None:
        """Give the first `length` cells of source to the empty sequence target too."""
        assert not self._cells.get(target), "a prefix is shared into an empty sequence only"
        shared = self._cells[source][:length]
        assert len(shared) == length, "the source holds fewer cells than asked for"
        self._memory.share(source, target, length)
        for cell in shared:
            self._ref_counts[cell] += 1
        self._cells[target] = shared

    def branch(self, seq_id: int, leaf_ids: list[int]) -> None:
        """Share a sequence's cells with the ids of its next tree's leaves, all but the first leaf."""
        for leaf_id in leaf_ids:
            self._memory.share(seq_id, leaf_id, self.length(seq_id))
        self._leaf_ids[seq_id] = leaf_ids

    def rewind(self, seq_id: int, length: int, accepted: list[int], paths: list[list[int]]) -> None:
        """Undo a verified draft tree: keep the cells of the accepted path, free those of all other nodes.

        length: tokens before the tree, after which append() added one cell for each node, in their order.
        paths: the nodes on the path to each leaf; the first leaf has the sequence's own id, the others the
        ids given to branch().
        """
        ids = [seq_id, *self._leaf_ids.pop(seq_id, [])]
        common = [_common_prefix(path, accepted) for path in paths or [[]]]
        for leaf_id, depth in zip(ids, common, strict=True):
            self._drop(leaf_id, length + depth)
        leaf = common.index(len(accepted))  # a leaf below the whole accepted path
        if leaf:
            self._memory.share_range(ids[leaf], seq_id, length + common[0], length + len(accepted))
        for leaf_id in ids[1:]:
            self._memory.truncate(leaf_id, 0)
        cells = self._cells[seq_id]
        nodes = cells[length:]
        cells[length:] = [nodes[i] for i in accepted]
        self._release(cell for i, cell in enumerate(nodes) if i not in accepted)

    def truncate(self, seq_id: int, length: int) -> None:
        """Keep the first `length` cells."""
        cells = self._cells.get(seq_id, [])
        if len(cells) > length:
            self._truncate(seq_id, length)

    def remove(self, seq_id: int) -> None:
        """Free all cells of a sequence, also those that a failed decode may have left in llama.cpp."""
        for leaf_id in self._leaf_ids.pop(seq_id, []):
            self._drop(leaf_id, 0)
        self._truncate(seq_id, 0)
        self._cells.pop(seq_id, None)

    def flush(self) -> None:
        """Free the retired cells. Only while no sequence holds a cell."""
        assert not any(self._cells.values()), "retired cells are freed only in an empty cache"
        self._memory.free_retired()
        self._ref_counts = [0] * self.capacity
        self._free = list(range(self.capacity - 1, -1, -1))
        self.retired = 0

    def _truncate(self, seq_id: int, length: int) -> None:
        self._drop(seq_id, length)
        cells = self._cells.get(seq_id, [])
        self._release(cells[length:])
        del cells[length:]

    def _drop(self, seq_id: int, length: int) -> None:
        if self.ordered:
            self._memory.retire(seq_id, length)
        else:
            self._memory.truncate(seq_id, length)

    def _release(self, cells: Iterable[int]) -> None:
        for cell in cells:
            self._ref_counts[cell] -= 1
            if self._ref_counts[cell]:
                continue
            if self.ordered:
                self.retired += 1
            else:
                self._free.append(cell)


def _common_prefix(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
