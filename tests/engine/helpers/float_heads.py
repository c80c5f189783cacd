"""Draft heads by their definition, in 32-bit numbers: what those that are served are compared with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from engine.medusa.model_rows import ModelRows
from engine.medusa.weights import Floats, HeadWeights, Ids, naming


class GivenRows(ModelRows):
    """Of a model without a file."""

    def __init__(self, lm_head: Floats | None = None, embeddings: Floats | None = None) -> None:
        self._lm_head, self._embeddings = lm_head, embeddings

    def lm_head(self, ids: Ids | None = None) -> Floats:
        assert self._lm_head is not None, "these heads have their own"
        return self._lm_head.copy() if ids is None else self._lm_head[ids]

    def embedding_blocks(self, rows: int) -> Iterator[Floats]:
        whole = self._embeddings
        assert whole is not None, "these heads do not see the path"
        return (whole[first:][:rows] for first in range(0, len(whole), rows))


class FloatHeads:
    """Has what engine.medusa.medusa_source.Heads asks for."""

    @classmethod
    def load(cls, path: str, *, width: int, vocab_size: int, model_rows: ModelRows) -> FloatHeads:
        """Heads from a file, or from a folder with one. Raises HeadsLoadError."""
        with naming(path):
            return cls(HeadWeights(path, width, vocab_size, model_rows))

    def __init__(self, weights: HeadWeights) -> None:
        self.heads, self.layers, self.width = weights.heads, weights.layers, weights.width
        self.metadata, self.draft_vocabulary = weights.metadata, weights.draft_vocabulary
        self._scale = np.float32(weights.logit_scale)
        self._layers = [[weights.layer(h, layer) for layer in range(self.layers)] for h in range(self.heads)]
        self._lm_heads = [weights.lm_head(head) for head in range(weights.lm_heads)]
        self.sees_path = weights.sees_path
        blocks = weights.embedding_blocks(weights.vocab_size) if weights.sees_path else ()
        self._embeddings = np.concatenate([*blocks]) if blocks else None

    def propose(
        self, hidden: Floats, heads: int, top: int, first: int = 0, path: Ids | None = None
    ) -> tuple[Ids, Floats]:
        logits = np.stack([self._logits(hidden, head, path) for head in range(first, heads)], axis=1)
        rows = np.argsort(-logits, axis=-1, kind="stable")[..., :top]
        shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        tokens = rows if self.draft_vocabulary is None else self.draft_vocabulary[rows]
        return tokens.astype(np.int32), np.take_along_axis(shares, rows, axis=-1)

    def _logits(self, states: Floats, head: int, path: Ids | None) -> Floats:
        inputs = states
        if self._embeddings is not None:
            assert path is not None
            inputs = np.concatenate(
                [states, *(self._embeddings[path[:, at]] for at in range(head + 1))], axis=1
            )
        for weight, bias in self._layers[head]:
            inner = inputs @ weight.T + bias
            inputs = states = states + inner * np.exp(-np.logaddexp(0, -inner))  # SiLU
        lm_head = self._lm_heads[head % len(self._lm_heads)]
        logits: Floats = states @ lm_head.T * self._scale
        return logits
