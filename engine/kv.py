"""The book of the KV cache: which sequence holds which cells, kept in step with llama.cpp's own.

llama.cpp's unified cache holds a cell once however many sequences share it, so free space is
counted in distinct cells, not in tokens.
"""

from __future__ import annotations

from typing import Protocol


class Memory(Protocol):
    """The sequence operations of engine.model.Model."""

    def share(self, source: int, target: int, length: int) -> None: ...
    def truncate(self, seq_id: int, length: int) -> None: ...
    def remove(self, seq_id: int) -> None: ...


class KVCache:
    """Cells by sequence id. Every change goes to the memory and to the book in one call."""

    def __init__(self, memory: Memory, capacity: int) -> None:
        self.capacity = capacity
        self._memory = memory
        self._cells: dict[int, list[int]] = {}
        self._owners = [0] * capacity  # how many sequences hold each cell
        self._free = list(range(capacity - 1, -1, -1))

    @property
    def used(self) -> int:
        return self.capacity - len(self._free)

    def length(self, seq_id: int) -> int:
        return len(self._cells.get(seq_id, ()))

    def append(self, seq_id: int, count: int) -> None:
        """Note `count` new cells, computed by the decode call that is about to run."""
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
            self._memory.truncate(seq_id, length)
            self._drop(cells[length:])
            del cells[length:]

    def remove(self, seq_id: int) -> None:
        """Let go of every cell, also of those a failed decode may have left behind."""
        self._memory.remove(seq_id)
        self._drop(self._cells.pop(seq_id, []))

    def would_free(self, seq_id: int) -> int:
        """Cells held by this sequence alone."""
        return sum(self._owners[cell] == 1 for cell in self._cells.get(seq_id, ()))

    def _drop(self, cells: list[int]) -> None:
        for cell in cells:
            self._owners[cell] -= 1
            if not self._owners[cell]:
                self._free.append(cell)
