"""Calibrated probabilities of the heads' candidates: hit rates, since softmax is overconfident."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.medusa.layouts import HeadsLoadError

Floats = NDArray[np.float64]

RANKS = 8  # candidates of a head, the best first; later ones are never worth a row
EDGES = (0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)  # of confidence
WINDOW = 500.0  # trials after which an old one counts 1/e: some seconds of one busy bin
UNSEEN_TRIALS = 10.0  # weight of the softmax probability as prior, in trials
PRIOR_TRIALS = 200.0  # most weight of the counts from training, so that other texts can overrule them


class Calibration:
    """Probabilities that a candidate is right, given that the path above it is.

    Cells are [head, beside, rank, bin of softmax probability]. beside: 1 if some candidate above it was not
    its head's best: later heads do not see that choice, so they are right less often. Hits and trials are
    decayed counts with a prior: the counts from training, or else the softmax probability.
    """

    def __init__(self, heads: int, window: float = WINDOW) -> None:
        """window: trials after which an old one counts 1/e; infinite to count a data set."""
        shape = (heads, 2, RANKS, len(EDGES) + 1)
        self.heads = heads
        self._keep = float(np.exp(-1 / window))
        self._hits, self._trials = np.zeros(shape), np.zeros(shape)
        middles = np.convolve((0.0, *EDGES, 1.0), (0.5, 0.5), mode="valid")
        self._prior_trials = np.full(shape, UNSEEN_TRIALS)
        self._prior_hits = self._prior_trials * middles
        self._chances = self._prior_hits / self._prior_trials

    def chances(self, first: int, probabilities: NDArray[np.float32]) -> Floats:
        """Probabilities [R, heads, ranks] of heads `first` on -> chances [R, heads, 2, ranks].

        Of one head's candidates at most one is right, so their chances sum to at most 1.
        """
        _, heads, ranks = probabilities.shape
        bins = np.searchsorted(EDGES, probabilities, side="right")[:, :, None, :]
        head = np.arange(first, first + heads)[:, None, None]
        chances: Floats = self._chances[head, np.arange(2)[:, None], np.arange(ranks), bins]
        exclusive: Floats = chances / np.maximum(1.0, chances.sum(axis=-1, keepdims=True))
        return exclusive

    def means(self) -> list[list[float]]:
        """Chances [head][rank] over all confidences, below best candidates."""
        hits = (self._prior_hits + self._hits)[:, 0].sum(axis=-1)
        trials = (self._prior_trials + self._trials)[:, 0].sum(axis=-1)
        means: list[list[float]] = (hits / trials).tolist()
        return means

    def score(
        self,
        candidates: Sequence[Sequence[int]],
        probabilities: Sequence[Sequence[float]],
        emitted: Sequence[int],
        first: int = 0,
    ) -> None:
        """Count one proposal of heads 0 on, each best first, against the emitted tokens.

        A head counts only if every head from `first` to it had the emitted token among its candidates.
        """
        beside = 0
        for head, (ids, confidences, token) in enumerate(
            zip(candidates[first:], probabilities[first:], emitted[first:], strict=False), first
        ):
            rank = ids.index(token) if token in ids else None
            self._count(head, beside, confidences, rank)
            if rank is None:
                return
            beside |= rank > 0

    def _count(self, head: int, beside: int, confidences: Sequence[float], hit: int | None) -> None:
        ranks = np.arange(len(confidences))
        cells = head, beside, ranks, np.searchsorted(EDGES, confidences, side="right")
        trials = self._trials[cells] * self._keep + 1
        hits = self._hits[cells] * self._keep + (ranks == hit)
        self._trials[cells], self._hits[cells] = trials, hits
        self._chances[cells] = (self._prior_hits[cells] + hits) / (self._prior_trials[cells] + trials)

    # In the metadata of a heads file

    def to_json(self) -> str:
        """The counts, for `start_from`."""
        counts = {"hits": self._hits.round(1).tolist(), "trials": self._trials.round(1).tolist()}
        return json.dumps({"edges": EDGES, **counts}, separators=(",", ":"))

    def start_from(self, text: str) -> None:
        """Take counts that to_json wrote for the same heads as prior. Raises HeadsLoadError."""
        hits, trials = _counts(text, self._hits.shape)
        self._prior_hits += hits * (share := np.minimum(1.0, PRIOR_TRIALS / np.maximum(trials, 1.0)))
        self._prior_trials += trials * share
        self._chances = (self._prior_hits + self._hits) / (self._prior_trials + self._trials)


def _counts(text: str, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    try:
        data: Any = json.loads(text)
        hits, trials = (np.array(data[name], dtype=np.float64) for name in ("hits", "trials"))
        edges = tuple(data["edges"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise HeadsLoadError(f"its calibration cannot be read: {error!r}") from error
    if edges != EDGES or hits.shape != shape or trials.shape != shape:
        raise HeadsLoadError(f"its calibration is of shape {hits.shape}, not {shape}, or of other bins")
    if not np.all((hits >= 0) & (hits <= trials) & np.isfinite(trials)):
        raise HeadsLoadError("its calibration has more hits than trials")
    return hits, trials
