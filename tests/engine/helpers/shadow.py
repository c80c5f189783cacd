"""A second KV cache to hold the engine's book against: llama.cpp's unified cache as plain Python."""

from __future__ import annotations

from dataclasses import dataclass, field

TOMBSTONE = -1  # owner of retired cells


@dataclass(slots=True)
class Cell:
    position: int = -1
    owners: set[int] = field(default_factory=set)


class ShadowMemory:
    """Cells with a position and owners; a cell without an owner is free, and the lowest is filled first."""

    def __init__(self, capacity: int) -> None:
        self.cells = [Cell() for _ in range(capacity)]
        self.calls: list[tuple[object, ...]] = []

    @property
    def used(self) -> int:
        return sum(bool(cell.owners) for cell in self.cells)

    def fill(self, seq_id: int, count: int) -> None:
        """What a decode call does: one new cell a row, at the positions that follow."""
        start = len(self.positions(seq_id))
        free = [cell for cell in self.cells if not cell.owners]
        for position, cell in zip(range(start, start + count), free[:count], strict=True):
            cell.position, cell.owners = position, {seq_id}

    def fill_tree(self, ids: list[int], row_ids: list[list[int]], depths: list[int]) -> None:
        """One token that all ids hold, and the nodes of a tree below it."""
        last = len(self.positions(ids[0]))
        rows = [(last, set(ids)), *((last + d, set(i)) for i, d in zip(row_ids, depths, strict=True))]
        free = [cell for cell in self.cells if not cell.owners]
        for (position, owners), cell in zip(rows, free[: len(rows)], strict=True):
            cell.position, cell.owners = position, owners

    def positions(self, seq_id: int) -> list[int]:
        """Positions held by a sequence, in the order in which its cells lie."""
        return [cell.position for cell in self.cells if seq_id in cell.owners]

    def share(self, source: int, target: int, length: int) -> None:
        self.calls.append(("share", source, target, length))
        for cell in self._held(source):
            if cell.position < length:
                cell.owners.add(target)

    def share_range(self, source: int, target: int, first: int, end: int) -> None:
        self.calls.append(("share_range", source, target, first, end))
        for cell in self._held(source):
            if first <= cell.position < end:
                cell.owners.add(target)

    def truncate(self, seq_id: int, length: int) -> None:
        self.calls.append(("truncate", seq_id, length))
        self._drop(seq_id, length)

    def retire(self, seq_id: int, length: int) -> None:
        self.calls.append(("retire", seq_id, length))
        for cell in self._held(seq_id):
            if cell.position >= length:
                cell.owners.add(TOMBSTONE)
        self._drop(seq_id, length)

    def free_retired(self) -> None:
        self.calls.append(("free_retired",))
        self._drop(TOMBSTONE, 0)

    def _held(self, seq_id: int) -> list[Cell]:
        return [cell for cell in self.cells if seq_id in cell.owners]

    def _drop(self, seq_id: int, length: int) -> None:
        for cell in self._held(seq_id):
            if cell.position >= length:
                cell.owners.discard(seq_id)
