"""The book of the KV cache: which sequence holds which cells, kept in step with llama.cpp's own.

llama.cpp's unified cache holds a cell once however many sequences share it, so free space is
counted in distinct cells, not in tokens.
"""

from __future__ import annotations

from typing import Protocol


class Memory(Protocol):
    """The sequence operations of engine.context.Context."""

    def share(self, source: int, target: int, length: int) -> None: ...
    def truncate(self, seq_id: int, length: int) -> None: ...
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

    def truncate(self, seq_id: int, length: int) -> None:
        """Keep the first `length` cells: the one place where the cache is rewound."""
        cells = self._cells.get(seq_id, [])
        if len(cells) > length:
            self._let_go(seq_id, length)

    def remove(self, seq_id: int) -> None:
        """Let go of every cell, also of those a failed decode may have left behind."""
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
        cells = self._cells.get(seq_id, [])
        if self.ordered:
            self._memory.bury(seq_id, length)
        else:
            self._memory.truncate(seq_id, length)
        for cell in cells[length:]:
            self._owners[cell] -= 1
            if self._owners[cell]:
                continue
            if self.ordered:
                self.buried += 1
            else:
                self._free.append(cell)
        del cells[length:]
