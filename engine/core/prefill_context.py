"""Prefill in a small context of its own, whose cells then move to where the request is decoded.

On a CPU a row looks at every cell of the cache, other requests' too, and a prompt that lands in holes
between them is slow to attend to: in a full cache of 8,192 cells a prompt token costs a third more
than in an empty one. Moving the cells of 300 tokens takes five milliseconds, five tokens' time.
"""

from __future__ import annotations

import numpy as np

from engine.core.kv_cache import KVCache
from engine.core.scheduler import Span
from engine.core.sequence import Sequence
from engine.llama.context import Context, Rows

_SEQ_ID = 0


class PrefillContext:
    """Holds the prompt of one sequence at a time, up to its last token."""

    def __init__(self, context: Context, target: Context, cache: KVCache) -> None:
        """The cells move to target, whose book is cache."""
        self.cells = context.cells
        self._context = context
        self._target = target
        self._cache = cache
        self._owner: Sequence | None = None

    def close(self) -> None:
        """Give the memory back, with no prompt under way."""
        self._context.close()

    def run(self, span: Span) -> None:
        """Compute a span; the last one of a prompt moves its cells. Raises DecodeError."""
        s = span.sequence
        if s.prefilled == s.computed:
            self._begin(s)
        assert self._owner is s, "one prompt at a time, from its first span to its last"
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

    def _begin(self, s: Sequence) -> None:
        """Start with the prefix that the sequence already shares in the target."""
        self._owner = s
        self._context.truncate(_SEQ_ID, 0)
        if s.computed:
            self._context.restore(self._target.save(s.seq_id), _SEQ_ID)

    def _move(self, s: Sequence) -> None:
        self._cache.append(s.seq_id, s.prefilled - s.computed)
        self._target.restore(self._context.save(_SEQ_ID, s.computed), s.seq_id)
        s.computed = s.prefilled
        self._owner = None
