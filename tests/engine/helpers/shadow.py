"""llama.cpp's memory as plain Python: which cells hold which tokens of which sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from engine.llama.context import NO_SLOT, DecodeError, Rows
from engine.llama.saved_cells import SavedCells


@dataclass(slots=True)
class Cell:
    """Free while it has no owner."""

    position: int = -1
    token: int = -1
    owners: set[int] = field(default_factory=set)


class ShadowContext:
    """What layouts ask of a Context: one cache of `cells`, or as many streams of so many cells each.

    refuses: called by restore(), which fails if it returns True.
    """

    def __init__(self, cells: int, *, streams: int = 0) -> None:
        self._streams = streams
        self._caches = [[Cell() for _ in range(cells)] for _ in range(streams or 1)]
        self.calls: list[tuple[object, ...]] = []
        self.refuses: Callable[[], bool] = lambda: False

    @property
    def used(self) -> int:
        """Cells with an owner."""
        return sum(bool(cell.owners) for cells in self._caches for cell in cells)

    def held(self) -> dict[int, list[int]]:
        """The tokens of each sequence with cells, by position."""
        found: dict[int, dict[int, int]] = {}
        for cells in self._caches:
            for cell in cells:
                for owner in cell.owners:
                    tokens = found.setdefault(owner, {})
                    assert cell.position not in tokens, "one cell for each position of a sequence"
                    tokens[cell.position] = cell.token
        for tokens in found.values():
            assert sorted(tokens) == list(range(len(tokens))), "positions without a gap"
        return {owner: [tokens[i] for i in range(len(tokens))] for owner, tokens in found.items()}

    def tokens(self, seq_id: int) -> list[int]:
        return [cell.token for cell in sorted(self._held(seq_id), key=lambda cell: cell.position)]

    def decode(self, rows: Rows) -> None:
        """Fill a cell for each row; each sequence must go on from its last position."""
        ids = [[int(first), *rows.further_ids.get(i, [])] for i, first in enumerate(rows.seq_ids)]
        positions: dict[int, list[int]] = {}
        for position, owners in zip(rows.positions.tolist(), ids, strict=True):
            assert len(owners) == 1 or not self._streams, "a row has one sequence where there are streams"
            for owner in owners:
                positions.setdefault(owner, []).append(position)
        for owner, of_rows in positions.items():
            first = len(self._held(owner))
            assert sorted(of_rows) == list(range(first, first + len(of_rows)))
        for token, position, owners in zip(rows.tokens.tolist(), rows.positions.tolist(), ids, strict=True):
            cell = self._free(owners[0])
            cell.token, cell.position, cell.owners = token, position, set(owners)

    def share(self, source: int, target: int, length: int) -> None:
        self.calls.append(("share", source, target, length))
        self._share(source, target, 0, length)

    def share_range(self, source: int, target: int, first: int, end: int) -> None:
        self.calls.append(("share_range", source, target, first, end))
        self._share(source, target, first, end)

    def _share(self, source: int, target: int, first: int, end: int) -> None:
        assert not self._streams, "llama.cpp copies whole streams only"
        for cell in self._held(source):
            if first <= cell.position < end:
                cell.owners.add(target)

    def truncate(self, seq_id: int, length: int) -> None:
        self.calls.append(("truncate", seq_id, length))
        for cell in self._held(seq_id):
            if cell.position >= length:
                cell.owners.discard(seq_id)

    def copy_stream(self, source: int, target: int) -> None:
        self.calls.append(("copy_stream", source, target))
        assert self._streams
        assert source != target
        self._caches[target] = [
            Cell(cell.position, cell.token, {target} if cell.owners else set())
            for cell in self._caches[source]
        ]

    def save(self, seq_id: int) -> SavedCells:
        self.calls.append(("save", seq_id))
        state = np.array(self.tokens(seq_id), dtype=np.int32).view(np.uint8)
        return SavedCells(state, self._streams or 1, seq_id if self._streams else 0)

    def restore(self, saved: SavedCells, seq_id: int) -> None:
        self.calls.append(("restore", seq_id))
        for cell in self._held(seq_id):
            cell.owners.discard(seq_id)
        tokens = saved.state.view(np.int32).tolist()
        free = sum(not cell.owners for cell in self._cache(seq_id))
        if self.refuses() or len(tokens) > free:
            raise DecodeError(NO_SLOT)
        for position, token in enumerate(tokens):
            cell = self._free(seq_id)
            cell.token, cell.position, cell.owners = token, position, {seq_id}

    def _cache(self, seq_id: int) -> list[Cell]:
        return self._caches[seq_id if self._streams else 0]

    def _held(self, seq_id: int) -> list[Cell]:
        return [cell for cell in self._cache(seq_id) if seq_id in cell.owners]

    def _free(self, seq_id: int) -> Cell:
        """The lowest free cell. Raises DecodeError."""
        cell = next((cell for cell in self._cache(seq_id) if not cell.owners), None)
        if cell is None:
            raise DecodeError(NO_SLOT)
        return cell
