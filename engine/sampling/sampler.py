"""Sampling the next token: pure functions over one row of logits, and a Sampler with the penalties' counts.

Order: logit_bias, penalties, grammar mask, temperature, top_k, top_p, min_p, draw. The draw uses a uniform
number that depends only on (seed, output position), so a result never depends on the other requests of the
batch, and exact acceptance of drafts equals plain decoding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import DecodeFailed
from engine.base.request import Acceptance, SamplingParams
from engine.sampling.grammar import Mask, dead_end

Row = NDArray[np.float32]  # [vocabulary]
TYPICAL_EPSILON = 0.09  # Medusa's threshold: a token at least this likely is always typical
TYPICAL_ALPHA = 0.3  # Medusa's factor: the more even the distribution, the lower the threshold
_FIRST_REACH = 8.0  # nats below the best logit: the range that filters sort first
_LAST_REACH = 104.0  # nats below the best logit: beyond, a weight is 0 in float32
_COLDEST = 1e-6  # lower temperatures overflow float32, and are effectively greedy


class Constraint(Protocol):
    """The tokens that may come next, given those accepted so far."""

    def allowed(self) -> Mask: ...

    def accept(self, token: int) -> None:
        """Advance by a token, which must be an allowed one."""
        ...


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that is a function of its arguments (Philox, a counter-based generator)."""
    return float(np.random.Generator(np.random.Philox(key=seed, counter=position)).random())


def choose(row: Row, params: SamplingParams, position: int, allowed: Mask | None = None) -> int:
    """The next token id from one row of adjusted logits, at this output position.

    Raises DecodeFailed if the logits are not finite, or no allowed token has a finite one.
    """
    best = int(row.argmax())
    if not math.isfinite(row[best]):
        raise DecodeFailed("the model's logits are not finite", code="invalid_logits")
    if allowed is not None:
        row = np.where(allowed, row, np.float32(-np.inf))
        best = int(row.argmax())
        if row[best] == -np.inf:
            raise dead_end()
    if params.temperature == 0:
        return best
    scaled = (row - row[best]) / np.float32(max(params.temperature, _COLDEST))
    weights: Row = np.exp(scaled)
    u = uniform(params.seed, position)
    if not params.top_k and params.top_p == 1 and not params.min_p:
        return draw(weights, u)
    total = float(weights.sum(dtype=np.float64))
    ids = _best_first(scaled, weights, total, params)
    kept = weights[ids]
    if params.top_k:
        kept = kept[: params.top_k]
        total = float(kept.sum(dtype=np.float64))
    keep = len(kept)
    if params.top_p < 1:
        keep = min(keep, int(np.searchsorted(np.cumsum(kept, dtype=np.float64), params.top_p * total)) + 1)
    if params.min_p:
        keep = min(keep, int((kept >= params.min_p).sum()))  # the best weight is 1
    return int(ids[draw(kept[:keep], u)])


def draw(weights: NDArray[np.floating], u: float) -> int:
    """Index drawn in proportion to the weights, by inverting their cumulative sum at u."""
    mass = np.cumsum(weights, dtype=np.float64)
    return min(int(np.searchsorted(mass, u * mass[-1], side="right")), len(weights) - 1)


def _best_first(scaled: Row, weights: Row, total: float, params: SamplingParams) -> NDArray[np.int64]:
    """Token ids, best first (ties by id): at least those that the filters can keep.

    Every filter keeps a prefix of this order, so only tokens near the best need sorting: the range doubles
    until it has top_k tokens, or top_p of the mass, or all that min_p allows, or all with any weight.
    """
    reach = _FIRST_REACH
    while True:
        ids = np.flatnonzero(scaled >= -reach)
        if params.top_k:
            enough = len(ids) >= params.top_k
        else:
            enough = params.top_p < 1 and float(weights[ids].sum(dtype=np.float64)) >= params.top_p * total
            enough = enough or (params.min_p > 0 and reach > -math.log(params.min_p))
        if enough or reach > _LAST_REACH or len(ids) == len(scaled):
            return ids[np.argsort(-scaled[ids], kind="stable")]
        reach *= 2


def _likeliest(logprobs: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Ids of so many tokens, likeliest first, ties by id; sorting a whole vocabulary takes milliseconds."""
    if not count:
        return np.empty(0, dtype=np.int64)
    last = -min(count, len(logprobs))
    ids = np.flatnonzero(logprobs >= np.partition(logprobs, last)[last])
    return ids[np.argsort(-logprobs[ids], kind="stable")][:count]


def typical(row: Row, temperature: float, candidates: Sequence[int]) -> int | None:
    """The likeliest candidate that is typical of the distribution p, if one is.

    Typical is a token x with p(x) > min(epsilon, alpha * exp(-H(p))), H being the entropy.
    Medusa's acceptance rule (arXiv:2401.10774, section 2.3.1). It is lossy: the output is no longer
    distributed as the model's own.
    """
    logprobs = log_probabilities((row - row.max()) / np.float32(max(temperature, _COLDEST)))
    entropy = -float((np.exp(logprobs) * np.maximum(logprobs, -_LAST_REACH)).sum())
    threshold = math.log(min(TYPICAL_EPSILON, TYPICAL_ALPHA * math.exp(-entropy)))
    best = max(candidates, key=lambda token: logprobs[token], default=None)
    return int(best) if best is not None and logprobs[best] > threshold else None


def log_probabilities(row: Row) -> NDArray[np.float64]:
    """Natural-log softmax of a row."""
    shifted = row.astype(np.float64) - float(row.max())
    return np.asarray(shifted - math.log(float(np.exp(shifted).sum())))


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A sampled token. logprob, top: its own and the best alternatives' (id, logprob), if requested."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """The sampler chain of one request, with the token counts that its penalties need."""

    def __init__(
        self, params: SamplingParams, prompt: NDArray[np.int32], constraint: Constraint | None = None
    ) -> None:
        self.params = params
        self._constraint = constraint
        self._bias_ids = np.fromiter(params.logit_bias.keys(), dtype=np.int64)
        self._bias = np.fromiter(params.logit_bias.values(), dtype=np.float32)
        self._counts: dict[int, int] = {}
        self._seen = set(prompt.tolist()) if params.repetition_penalty != 1 else set()
        p = params
        self._penalised = p.repetition_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0

    def adjust(self, row: Row) -> Row:
        """Logits after logit_bias and penalties; the row itself when there are none."""
        if not self._penalised and not len(self._bias_ids):
            return row
        row = row.copy()
        row[self._bias_ids] += self._bias
        if self._seen:
            seen = np.fromiter(self._seen, dtype=np.int64)
            logits, factor = row[seen], np.float32(self.params.repetition_penalty)
            row[seen] = np.where(logits > 0, logits / factor, logits * factor)
        if self._counts:
            ids = np.fromiter(self._counts.keys(), dtype=np.int64)
            counts = np.fromiter(self._counts.values(), dtype=np.float32)
            row[ids] -= self.params.presence_penalty + self.params.frequency_penalty * counts
        return row

    def next(self, row: Row, position: int, candidates: Sequence[int] = ()) -> SampledToken:
        """Sample the token for this output position. candidates: drafted tokens, used only by typical
        acceptance.

        Raises DecodeFailed if the logits are not finite, or the grammar allows no token.
        """
        adjusted = self.adjust(row)
        allowed = self._constraint.allowed() if self._constraint else None
        token = None
        if candidates and self.params.acceptance is Acceptance.TYPICAL and self.params.temperature > 0:
            if allowed is not None:
                candidates = [candidate for candidate in candidates if allowed[candidate]]
            token = typical(adjusted, self.params.temperature, candidates)
        if token is None:
            token = choose(adjusted, self.params, position, allowed)
        if self._constraint:
            self._constraint.accept(token)
        if self._penalised:
            self._counts[token] = self._counts.get(token, 0) + 1
            if self.params.repetition_penalty != 1:
                self._seen.add(token)
        if self.params.logprobs is None:
            return SampledToken(token)
        logprobs = log_probabilities(adjusted)
        best = _likeliest(logprobs, self.params.logprobs)
        return SampledToken(token, float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in best))
