"""How often guesses of one kind came true lately."""

from __future__ import annotations

WINDOW = 200.0  # trials after which an old one counts 1/e
PRIOR_TRIALS = 20.0


class HitRate:
    """A decayed hit rate with a prior."""

    def __init__(self, prior: float) -> None:
        self._hits, self._trials = prior * PRIOR_TRIALS, PRIOR_TRIALS

    @property
    def value(self) -> float:
        return self._hits / self._trials

    def count(self, hit: bool) -> None:
        keep = 1 - 1 / WINDOW
        self._hits, self._trials = self._hits * keep + hit, self._trials * keep + 1
