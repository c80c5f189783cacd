"""Builds the rows of one decode call."""

from __future__ import annotations

import numpy as np

from engine.core.token_tree import Draft
from engine.llama.context import Rows


class RowsBuilder:
    """Collects rows span by span: the span's tokens, then the nodes of the draft tree below the last one."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._positions: list[int] = []
        self._seq_ids: list[int] = []
        self._outputs: list[int] = []
        self._further_ids: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def add(
        self,
        seq_id: int,
        tokens: list[int],
        start: int,
        draft: Draft,
        output: bool = True,
        filling: int = 0,
    ) -> None:
        """Add tokens at positions from `start` on. output: whether the last gives logits; nodes always do.

        filling: rows without a meaning after a chain, for as many rows as other sequences have.
        """
        last = start + len(tokens) - 1
        for position, token in enumerate(tokens, start):
            self._add(token, position, [seq_id, *draft.leaf_ids], output and position == last)
        for node, ids in zip(draft.tree, draft.row_ids(seq_id), strict=True):
            self._add(node.token, last + node.depth, ids, True)
        end = last + len(draft.tree) + 1
        for position in range(end, end + filling):
            self._add(tokens[-1], position, [seq_id], False)

    def _add(self, token: int, position: int, ids: list[int], output: bool) -> None:
        if len(ids) > 1:
            self._further_ids[len(self._tokens)] = ids[1:]
        self._tokens.append(token)
        self._positions.append(position)
        self._seq_ids.append(ids[0])
        self._outputs.append(output)

    def build(self) -> Rows:
        tokens, positions, ids = (
            np.array(column, dtype=np.int32) for column in (self._tokens, self._positions, self._seq_ids)
        )
        return Rows(tokens, positions, ids, np.array(self._outputs, dtype=np.int8), self._further_ids)
