"""The sampler by its definitions in float64, and whether draws follow a distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine import SamplingParams
from engine.sampling.sampler import Row

DRAWS = 20_000
Float64 = NDArray[np.float64]
NO_PROMPT = np.array([], dtype=np.int32)


def row(*logits: float) -> Row:
    return np.array(logits, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Reference:
    """The distribution after temperature and filters, in float64, with the order it is drawn in."""

    ids: list[int]  # best first when there is a filter, else by id
    weights: list[float]
    margin: float  # how near a filter's border came to a token, relative: there float32 may differ

    def probabilities(self, size: int) -> Float64:
        result = np.zeros(size)
        result[self.ids] = np.array(self.weights) / math.fsum(self.weights)
        return result

    def draw(self, u: float) -> tuple[int, float]:
        """(the id whose part of the cumulative sum holds u, distance of u to the part's border)."""
        total, below = math.fsum(self.weights), 0.0
        for token, weight in zip(self.ids, self.weights, strict=True):
            if u * total < below + weight:
                return token, min(abs(u * total - below), abs(below + weight - u * total)) / total
            below += weight
        raise AssertionError("u is below 1")


def reference(logits: Row, p: SamplingParams) -> Reference:
    exact = [float(x) for x in logits]
    best = max(exact)
    weight = [math.exp((x - best) / max(p.temperature, 1e-6)) for x in exact]
    ids = list(range(len(exact)))
    if not p.top_k and p.top_p == 1 and not p.min_p:
        return Reference(ids, weight, 1.0)
    ids.sort(key=lambda i: (-exact[i], i))
    margins = [1.0]
    if p.top_k:
        ids = ids[: p.top_k]
    kept = ids
    if p.top_p < 1:
        goal, mass, kept = p.top_p * math.fsum(weight[i] for i in ids), 0.0, []
        for i in ids:
            kept.append(i)
            mass += weight[i]
            margins.append(abs(mass - goal) / goal)
            if mass >= goal:
                break
    if p.min_p:
        margins += [abs(weight[i] - p.min_p) / p.min_p for i in kept]
        kept = [i for i in kept if weight[i] >= p.min_p]
    return Reference(kept, [weight[i] for i in kept], min((m for m in margins if m), default=1.0))


def follows(observed: Float64, probabilities: Float64) -> bool:
    """Pearson's chi-square test at p = 0.0001 (Wilson-Hilferty), with nothing outside the support."""
    support = probabilities > 0
    if observed[~support].any():
        return False
    expected = probabilities[support] * observed.sum()
    assert expected.min() > 5, "too few draws for a chi-square test"
    statistic = float(((observed[support] - expected) ** 2 / expected).sum())
    freedom = int(support.sum()) - 1
    if not freedom:
        return True
    spread = 2 / (9 * freedom)
    return statistic < freedom * (1 - spread + 3.719 * math.sqrt(spread)) ** 3


PEAKED = row(2.0, -0.5, 1.2, 0.1, 1.9, -1.0, 0.7, 0.1)
FILTERS = [
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 2.0},
    {"temperature": 1.0, "top_k": 3},
    {"temperature": 1.3, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 1.5, "top_k": 5, "top_p": 0.9, "min_p": 0.1},
]


def logits_of(kind: str, size: int, seed: int) -> Row:
    rng = np.random.default_rng(seed)
    values: dict[str, Callable[[], NDArray[np.floating]]] = {
        "flat": lambda: np.zeros(size),
        "normal": lambda: rng.normal(0, 3, size),
        "wide": lambda: rng.normal(0, 40, size),  # most tokens are out of the first reach
        "ties": lambda: rng.integers(-3, 3, size).astype(float),
        "peaked": lambda: np.where(np.arange(size) == size // 2, 25.0, rng.normal(0, 0.01, size)),
        "steps": lambda: -12.0 * np.arange(size),  # each doubling of the reach finds few more
    }
    return values[kind]().astype(np.float32)


rows = st.builds(
    logits_of,
    st.sampled_from(["flat", "normal", "wide", "ties", "peaked", "steps"]),
    st.integers(1, 200),
    st.integers(0, 2**32),
)
filtered = st.builds(
    SamplingParams,
    temperature=st.sampled_from([1e-300, 0.05, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 0, 1, 2, 5, 40, 10_000]),
    top_p=st.one_of(st.just(1.0), st.floats(1e-6, 1.0)),
    min_p=st.one_of(st.just(0.0), st.floats(1e-6, 1.0)),
    seed=st.integers(0, 2**63 - 1),
)
