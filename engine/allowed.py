"""Choosing among the tokens that a grammar allows, with few of them tested.

To test every token of a vocabulary of 49,152 takes as long as a decode call of a small model, and nearly
always a few at the top decide. So tokens are tested from the best one down, until what is still untested
can no longer change the choice. The choice is a function of the row, the grammar's state and the random
number alone, like that without a grammar.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.errors import DecodeFailed
from engine.request import SamplingParams

Row = NDArray[np.float32]
Ids = NDArray[np.int64]
TRIES = 3  # draws among all tokens before the best are tested one after the other
LEAST_MASS = 0.01  # of the best token's; with less left, the allowed ones are not those that would be drawn
FIRST_BLOCK = 16  # tokens tested at once; later blocks are four times the one before
ALL = float(np.finfo(np.float32).max)  # but what is minus infinity
REACHES = (4.0, 8.0, 16.0, 32.0, 64.0, ALL)  # nats below the best logit that are sorted at once


class Constraint(Protocol):
    """What the next token may be, after all that were accepted."""

    def allowed(self, ids: Ids) -> NDArray[np.bool_]:
        """For each token whether it may come next."""
        ...

    def accept(self, token: int) -> None:
        """Go on after this token, which must be an allowed one."""
        ...


def best_allowed(row: Row, constraint: Constraint) -> int:
    """The allowed token of the highest logit, the first of equals."""
    best = int(row.argmax())
    if _allows(constraint, best):
        return best
    for ids in _Ranking(row - row[best]).blocks():
        kept = ids[constraint.allowed(ids)]
        if len(kept):
            return int(kept[0])
    raise _dead_end()


def draw_allowed(
    scaled: Row, params: SamplingParams, constraint: Constraint, uniform: Callable[[int], float]
) -> int:
    """A token of the distribution that is left when the refused ones are masked, before all filters.

    scaled: logits after temperature, the best one 0. uniform(i): the i-th random number of this position.
    """
    if not params.top_k and not params.min_p:
        token = _try(scaled, params.top_p, constraint, uniform)
        if token is not None:
            return token
    u = uniform(TRIES)
    found = np.empty(0, dtype=np.int64)
    ranking = _Ranking(scaled)
    for ids in ranking.blocks():
        found = np.concatenate((found, ids[constraint.allowed(ids)]))
        if len(found):
            level = float(scaled[found[0]])
            kept = np.exp(scaled[found].astype(np.float64) - level)
            index = _decide(kept, ranking.rest(level), params, u)
            if index is not None:
                return int(found[index])
    raise _dead_end()


def _try(scaled: Row, top_p: float, constraint: Constraint, uniform: Callable[[int], float]) -> int | None:
    """Draw among all tokens: what is allowed, and in the nucleus, is as if drawn among these alone."""
    weights: Row = np.exp(scaled)
    for attempt in range(TRIES):
        token = draw(weights, uniform(attempt))
        if not _allows(constraint, token):
            weights[token] = 0
            if weights.sum(dtype=np.float64) < LEAST_MASS:
                return None
        elif top_p == 1 or _in_nucleus(token, scaled, weights, top_p, constraint):
            return token
    return None


def _in_nucleus(token: int, scaled: Row, weights: Row, top_p: float, constraint: Constraint) -> bool:
    """Whether the allowed tokens that come before this one weigh less than top_p of all allowed ones."""
    before = scaled > scaled[token]
    before[:token] |= scaled[:token] == scaled[token]
    most, most_before = weights.sum(dtype=np.float64), weights[before].sum(dtype=np.float64)
    least = least_before = 0.0
    for ids in _Ranking(scaled).blocks():
        allowed, first, weight = constraint.allowed(ids), before[ids], weights[ids].astype(np.float64)
        least += weight[allowed].sum()
        least_before += weight[allowed & first].sum()
        most -= weight[~allowed].sum()
        most_before -= weight[~allowed & first].sum()
        if most_before < top_p * least:
            return True
        if least_before >= top_p * most:
            return False
    return True  # on the border, but for rounding


def draw(weights: NDArray[np.floating], u: float) -> int:
    """Index drawn in proportion to the weights, by inverting their cumulative sum at u."""
    mass = np.cumsum(weights, dtype=np.float64)
    return min(int(np.searchsorted(mass, u * mass[-1], side="right")), len(weights) - 1)


def _decide(weights: NDArray[np.float64], rest: float, params: SamplingParams, u: float) -> int | None:
    """Index of the draw among the allowed tokens, or None while those not tested yet may change it.

    weights: of the allowed ones found so far, falling, the first 1. rest: all that may still come.
    """
    if params.top_k and len(weights) >= params.top_k:
        weights, rest = weights[: params.top_k], 0.0
    mass = np.cumsum(weights)
    if not rest:
        return min(_place(weights, mass, float(mass[-1]), params, u), len(weights) - 1)
    # The place only moves down the order as the total grows, so two equal ends settle what is between.
    least, most = (_place(weights, mass, float(mass[-1]) + more, params, u) for more in (0.0, rest))
    return least if least == most < len(weights) else None


def _place(
    weights: NDArray[np.float64], mass: NDArray[np.float64], total: float, params: SamplingParams, u: float
) -> int:
    """Where the draw falls if the allowed tokens weigh `total`; beyond the last when that is not known."""
    keep = len(mass)
    if params.top_p < 1:
        keep = min(keep, int(np.searchsorted(mass, params.top_p * total)) + 1)
    if params.min_p:
        keep = min(keep, int((weights >= params.min_p).sum()))
    if keep == len(mass):
        return int(np.searchsorted(mass, u * total, side="right"))
    return min(int(np.searchsorted(mass, u * mass[keep - 1], side="right")), keep - 1)


class _Ranking:
    """Tokens from the best one down, ties by id; those of no weight at all are left out."""

    def __init__(self, scaled: Row) -> None:
        self._scaled = scaled
        self._left: Ids = np.empty(0, dtype=np.int64)
        self._floor = math.inf

    def blocks(self) -> Iterator[Ids]:
        size, above = FIRST_BLOCK, math.inf
        for reach in REACHES:
            self._floor = -reach
            ids = np.flatnonzero((self._scaled < above) & (self._scaled >= self._floor))
            ids = ids[np.argsort(-self._scaled[ids], kind="stable")]
            first = 0
            while first < len(ids):
                self._left = ids[first + size :]
                yield ids[first : first + size]
                first, size = first + size, size * 4
            above = -reach

    def rest(self, level: float) -> float:
        """Weight of all tokens that are in no block so far, where a logit of `level` weighs 1."""
        below = self._scaled[self._scaled < self._floor]
        return float(
            np.exp(self._scaled[self._left] - np.float32(level)).sum(dtype=np.float64)
            + np.exp(below - np.float32(level)).sum(dtype=np.float64)
        )


def _allows(constraint: Constraint, token: int) -> bool:
    return bool(constraint.allowed(np.array([token]))[0])


def _dead_end() -> DecodeFailed:
    return DecodeFailed("no token of the vocabulary goes on as the grammar demands", code="grammar_dead_end")
