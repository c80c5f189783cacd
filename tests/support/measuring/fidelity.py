"""How far a model's outputs are from those of the same weights computed exactly, over a few short texts."""

from __future__ import annotations

import numpy as np

from compiling.measure import quality
from compiling.measure.quality import LogProbabilities
from engine.llama.model import Model

MOST_TOKENS = 256  # of a text


def log_probabilities(path: str, *texts: str) -> LogProbabilities:
    """[tokens, vocab] after each token of each text."""
    model = Model(path)
    parts = [model.tokenize(text, add_bos=False, special=False)[:MOST_TOKENS] for text in texts]
    return np.concatenate([quality.log_probabilities(one.logits) for one in quality.rated(model, parts)])


def divergence(exact: LogProbabilities, other: LogProbabilities) -> float:
    """Mean Kullback-Leibler divergence, in nats a token."""
    return float(quality.divergences(exact, other).mean())


def agreement(exact: LogProbabilities, other: LogProbabilities) -> float:
    """Share of tokens after which both hold the same one for the likeliest."""
    return float(quality.same_likeliest(exact, other).mean())
