"""Prefill in a small context of its own; the cells are then copied into the context that decodes.

On a CPU, attention visits every cell of the cache, those of other requests too, and is slower for a prompt
whose cells are scattered: in a full cache of 8,192 cells a prompt token costs a third more than in an empty
one. Copying the cells of 300 tokens takes 5 ms, as long as computing five tokens.
"""

from __future__ import annotations

import numpy as np

from engine.core.kv_cache import KVCache
from engine.core.scheduler import Span
from engine.core.sequence import SequenceState
from engine.llama.context import Context, Rows

_SEQ_ID = 0


class PrefillContext:
    """Computes one prompt at a time, all but its last token, which is decoded in the main context."""

    def __init__(self, context: Context, target: Context, cache: KVCache) -> None:
        """context: prefills. target: receives the cells. cache: the accounting of target."""
        self.cells = context.cells
        self._context = context
        self._target = target
        self._cache = cache
        self._owner: SequenceState | None = None

    def close(self) -> None:
        """Give the memory back, with no prompt under way."""
        self._context.close()

    def run(self, span: Span) -> None:
        """Compute a span; after a prompt's last span, move its cells to the target. Raises DecodeError."""
        s = span.sequence
        if s.prefilled == s.computed:
            self._begin(s)
        assert self._owner is s, "spans of two prompts must not alternate"
        first, end = s.prefilled, s.prefilled + span.count
        self._context.decode(
            Rows(
                s.tokens[first:end],
                np.arange(first, end, dtype=np.int32),
                np.full(span.count, _SEQ_ID, dtype=np.int32),
                np.zeros(span.count, dtype=np.int8),
            )
        )
        s.prefilled = end
        if end == s.length - 1:
            self._move(s)

    def _begin(self, s: SequenceState) -> None:
        """Copy the cached prefix that the sequence has in the target, if any."""
        self._owner = s
        self._context.truncate(_SEQ_ID, 0)
        if s.computed:
            self._context.restore(self._target.save(s.seq_id), _SEQ_ID)

    def _move(self, s: SequenceState) -> None:
        self._cache.append(s.seq_id, s.prefilled - s.computed)
        self._target.restore(self._context.save(_SEQ_ID, s.computed), s.seq_id)
        s.computed = s.prefilled
        self._owner = None
