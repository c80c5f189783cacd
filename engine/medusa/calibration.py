"""Calibrated probabilities of the heads' candidates: hit rates, since softmax is overconfident."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import exp, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.medusa.layouts import HeadsLoadError

Floats = NDArray[np.float64]

RANKS = 8  # candidates of a head, the best first; later ones are never worth a row
EDGES = (0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)  # of confidence
BINS = len(EDGES) + 1
WINDOW = 500.0  # trials after which an old one counts 1/e: some seconds of one busy bin
UNSEEN_TRIALS = 10.0  # weight of the softmax probability as prior, in trials
PRIOR_TRIALS = 200.0  # most weight of the counts from training, so that other texts can overrule them
UNKNOWN_MEANS = tuple(0.5 / (1 + rank) ** 2 for rank in range(RANKS))  # a guess, where nothing was counted


class Calibration:
    """Probabilities that a candidate is right, given that the path above it is.

    Cells are [head, beside, rank, bin of softmax probability]. beside: 1 if some candidate above it was not
    its head's best: heads below it are right less often. Hits and trials are decayed counts with a prior: the
    counts from training, or else the softmax probability.
    """

    def __init__(self, heads: int, window: float = WINDOW) -> None:
        """window: trials after which an old one counts 1/e; infinite to count a data set."""
        self._shape = (heads, 2, RANKS, BINS)
        self._keep = exp(-1 / window)
        # Flat lists: a step reads and writes some dozen cells, for which calls of numpy take longer.
        cells = prod(self._shape)
        self._hits, self._trials = [0.0] * cells, [0.0] * cells
        self._chances = [(low + high) / 2 for low, high in pairwise((0.0, *EDGES, 1.0))] * (cells // BINS)
        self._prior_hits = [UNSEEN_TRIALS * chance for chance in self._chances]
        self._prior_trials = [UNSEEN_TRIALS] * cells
        # Of means, [head, beside, rank]: bins as often as they occurred, not at most PRIOR_TRIALS of each.
        self._mean_trials = np.full((heads, 2, RANKS), UNSEEN_TRIALS)
        self._mean_hits = self._mean_trials * UNKNOWN_MEANS

    def chances(self, head: int, beside: bool, probabilities: Sequence[float]) -> list[float]:
        """Chances of a head's candidates, whose probabilities are given, the best first.

        At most one is right, so their chances sum to at most 1.
        """
        chances = [self._chances[cell] for cell in self._cells(head, beside, probabilities)]
        total = sum(chances)
        return [chance / total for chance in chances] if total > 1 else chances

    def _cells(self, head: int, beside: bool, probabilities: Sequence[float]) -> list[int]:
        first = (head * 2 + beside) * RANKS
        return [(first + rank) * BINS + bisect_right(EDGES, p) for rank, p in enumerate(probabilities)]

    def means(self) -> list[list[list[float]]]:
        """Chances [head][beside][rank] over all confidences."""
        hits, trials = (self._table(cells).sum(axis=-1) for cells in (self._hits, self._trials))
        means: list[list[list[float]]] = ((self._mean_hits + hits) / (self._mean_trials + trials)).tolist()
        return means

    def _table(self, cells: list[float]) -> Floats:
        return np.array(cells).reshape(self._shape)

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
        beside = False
        for head, (ids, confidences, token) in enumerate(
            zip(candidates[first:], probabilities[first:], emitted[first:], strict=False), first
        ):
            rank = ids.index(token) if token in ids else None
            self._count(head, beside, confidences, rank)
            if rank is None:
                return
            beside = beside or rank > 0

    def _count(self, head: int, beside: bool, confidences: Sequence[float], hit: int | None) -> None:
        for rank, cell in enumerate(self._cells(head, beside, confidences)):
            trials = self._trials[cell] = self._trials[cell] * self._keep + 1
            hits = self._hits[cell] = self._hits[cell] * self._keep + (rank == hit)
            self._chances[cell] = (self._prior_hits[cell] + hits) / (self._prior_trials[cell] + trials)

    # In the metadata of a heads file

    def to_json(self) -> str:
        """The counts, for `start_from`."""
        counts = {"hits": self._table(self._hits), "trials": self._table(self._trials)}
        rounded = {name: table.round(1).tolist() for name, table in counts.items()}
        return json.dumps({"edges": EDGES, **rounded}, separators=(",", ":"))

    def start_from(self, text: str) -> None:
        """Take counts that to_json wrote for the same heads as prior. Raises HeadsLoadError."""
        hits, trials = _counts(text, self._shape)
        share = np.minimum(1.0, PRIOR_TRIALS / np.maximum(trials, 1.0))
        prior_hits = self._table(self._prior_hits) + hits * share
        prior_trials = self._table(self._prior_trials) + trials * share
        chances = (prior_hits + self._table(self._hits)) / (prior_trials + self._table(self._trials))
        mean_hits, mean_trials = hits.sum(axis=-1), trials.sum(axis=-1)
        share = np.minimum(1.0, PRIOR_TRIALS / np.maximum(mean_trials, 1.0))
        self._mean_hits, self._mean_trials = (
            self._mean_hits + mean_hits * share,
            self._mean_trials + mean_trials * share,
        )
        self._prior_hits, self._prior_trials = prior_hits.ravel().tolist(), prior_trials.ravel().tolist()
        self._chances = chances.ravel().tolist()


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
