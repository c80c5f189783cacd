"""Scores heads on held-out answers, with the engine's own implementation of heads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.medusa.calibration import RANKS, Calibration
from engine.medusa.medusa_source import Heads
from training.collection.dataset import Answer

TOP = 5


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores on greedy answers of two tokens or more; without any, tokens is 0 and the scores mean nothing.

    top1, top5: share of positions where a head's best candidate, or one of its best five, is right; given
    the tokens before it, for heads that see them.
    tokens_per_step: mean number of tokens per step with a chain of every head's best token: the accepted
    drafts, and the token of the model itself. The next step begins after the accepted chain.
    """

    top1: list[float]
    top5: list[float]
    tokens_per_step: float
    tokens: int

    @property
    def mean_top1(self) -> float:
        return sum(self.top1) / len(self.top1)

    def text(self) -> str:
        if not self.tokens:
            return "no greedy answer to score"
        shares = " ".join(f"{a:.3f}/{b:.3f}" for a, b in zip(self.top1, self.top5, strict=True))
        return f"{self.tokens_per_step:.3f} tokens a step; top-1/top-5 {shares}"

    def to_dict(self) -> dict[str, object]:
        return {
            "tokens_per_step": round(self.tokens_per_step, 4),
            "top1": [round(share, 4) for share in self.top1],
            "top5": [round(share, 4) for share in self.top5],
            "tokens": self.tokens,
        }


class Scorer:
    """Accumulates Scores, answer by answer."""

    def __init__(self, heads: int) -> None:
        self._heads = heads
        self._top1, self._top5, self._places = (np.zeros(heads) for _ in range(3))
        self._steps = self._accepted = self._tokens = 0

    def add(self, tokens: NDArray[np.int32], output: NDArray[np.int32]) -> None:
        """tokens: the candidates at each position of an answer, best first: [output, heads, ranks]."""
        right = [hits(tokens[:, head], output, head) for head in range(self._heads)]
        for head, found in enumerate(right):
            self._places[head] += len(found)
            self._top1[head] += found[:, 0].sum()
            self._top5[head] += found[:, :TOP].any(axis=1).sum()
        whole = max(len(output) - self._heads, 0)  # positions where the complete chain can be scored
        best = np.stack([found[:whole, 0] for found in right], axis=1)
        accepted = np.logical_and.accumulate(best, axis=1).sum(axis=1).tolist()
        place = 0
        while place < whole:
            self._steps += 1
            self._accepted += accepted[place]
            place += accepted[place] + 1
        self._tokens += len(output)

    def scores(self) -> Scores:
        places = np.maximum(self._places, 1)
        return Scores(
            top1=(self._top1 / places).tolist(),
            top5=(self._top5 / places).tolist(),
            tokens_per_step=1 + self._accepted / max(self._steps, 1),
            tokens=self._tokens,
        )


def hits(tokens: NDArray[np.int32], output: NDArray[np.int32], head: int) -> NDArray[np.bool_]:
    """Whether each of a head's candidates [output, ranks] is right; positions past the end are left out."""
    ahead = head + 1
    found: NDArray[np.bool_] = tokens[: max(len(output) - ahead, 0)] == output[ahead:, None]
    return found


def evaluate(heads: Heads, answers: Iterable[Answer]) -> Scores:
    """Score heads on the greedy answers among these."""
    scorer = Scorer(heads.heads)
    for answer in answers:
        if not answer.sampled and len(answer.output) > 1:
            scorer.add(_proposed(heads, answer, TOP)[0], answer.output)
    return scorer.scores()


def calibrate(heads: Heads, answers: Iterable[Answer]) -> str:
    """JSON counts of right and wrong candidates by head, rank and confidence: the engine's prior."""
    calibration = Calibration(heads.heads, window=float("inf"))
    for answer in answers:
        tokens, confidences = _proposed(heads, answer, RANKS)
        output = answer.output.tolist()
        for place, (ids, shares) in enumerate(zip(tokens.tolist(), confidences.tolist(), strict=True)):
            calibration.score(ids, shares, output[place + 1 : place + 1 + heads.heads])
    return calibration.to_json()


def _proposed(heads: Heads, answer: Answer, top: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Candidates and probabilities [output, heads, top] at each position, below the tokens that came."""
    ahead = np.arange(len(answer.output))[:, None] + np.arange(heads.heads)
    path = answer.output[np.minimum(ahead, len(answer.output) - 1)]  # what is past the end is not scored
    return heads.propose(answer.hidden.astype(np.float32), heads.heads, top, path=path)
