"""How far a model's outputs are from those of the same weights computed exactly."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.context import Context, Rows
from engine.model import Model

ROWS = 16  # a call, as in decoding
MOST_TOKENS = 256  # of a text
LogProbabilities = NDArray[np.float64]


def log_probabilities(path: str, *texts: str) -> LogProbabilities:
    """[tokens, vocab] after each token of each text."""
    model = Model(path)
    context = Context(model, cells=MOST_TOKENS, seq_ids=1, max_rows=ROWS)
    found = []
    for text in texts:
        tokens = model.tokenize(text, add_bos=False, special=False)[:MOST_TOKENS]
        context.truncate(0, 0)
        for first in range(0, len(tokens), ROWS):
            part = tokens[first : first + ROWS]
            positions = np.arange(first, first + len(part), dtype=np.int32)
            rows = Rows(part, positions, np.zeros(len(part), np.int32), np.ones(len(part), np.int8))
            found.append(context.decode(rows).logits.astype(np.float64))
    logits = np.concatenate(found)
    logits -= logits.max(axis=1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))


def divergence(exact: LogProbabilities, other: LogProbabilities) -> float:
    """Mean Kullback-Leibler divergence, in nats a token."""
    return float((np.exp(exact) * (exact - other)).sum(axis=1).mean())


def agreement(exact: LogProbabilities, other: LogProbabilities) -> float:
    """Share of tokens after which both hold the same one for the likeliest."""
    return float((exact.argmax(axis=1) == other.argmax(axis=1)).mean())
