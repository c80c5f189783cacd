"""Draws against the distribution that they claim to follow, filters, and the random numbers behind them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine import SamplingParams
from engine.sampling.sampler import Row, _best_first, choose, draw, uniform
from tests.engine.helpers.sampling import (
    DRAWS,
    FILTERS,
    PEAKED,
    Float64,
    filtered,
    follows,
    logits_of,
    reference,
    row,
    rows,
)

pytestmark = pytest.mark.slow


def counts(logits: Row, p: SamplingParams) -> Float64:
    drawn = [choose(logits, p, position) for position in range(DRAWS)]
    return np.bincount(drawn, minlength=len(logits)).astype(np.float64)


@pytest.mark.parametrize("values", FILTERS, ids=str)
def test_draws_follow_the_distribution(values: dict[str, float]) -> None:
    p = SamplingParams(seed=11, **values)  # type: ignore[arg-type]
    observed = counts(PEAKED, p)
    assert follows(observed, reference(PEAKED, p).probabilities(len(PEAKED)))


def test_the_chi_square_test_would_notice() -> None:
    """Negative controls: a temperature off by 5%, a filter left out, two tokens swapped."""
    p = SamplingParams(seed=11, temperature=1.0, top_k=5)
    observed = counts(PEAKED, p)
    assert follows(observed, reference(PEAKED, p).probabilities(len(PEAKED)))
    for wrong in (
        SamplingParams(temperature=1.05, top_k=5),
        SamplingParams(temperature=1.0, top_k=4),
        SamplingParams(temperature=1.0),
    ):
        assert not follows(observed, reference(PEAKED, wrong).probabilities(len(PEAKED)))
    swapped = PEAKED.copy()
    swapped[[0, 4]] = swapped[[4, 0]]
    assert not follows(observed, reference(swapped, p).probabilities(len(PEAKED)))


def test_draws_over_seeds_follow_the_distribution() -> None:
    """The first token of many requests: the seed varies, the position does not."""
    p = [SamplingParams(seed=seed, temperature=1.0) for seed in range(DRAWS)]
    drawn = np.bincount([choose(PEAKED, q, 0) for q in p], minlength=len(PEAKED)).astype(np.float64)
    assert follows(drawn, reference(PEAKED, p[0]).probabilities(len(PEAKED)))


@given(logits=rows, p=filtered, position=st.integers(0, 10_000))
@settings(max_examples=600, deadline=None)
def test_any_choice_is_the_reference_choice(logits: Row, p: SamplingParams, position: int) -> None:
    expected = reference(logits, p)
    token, distance = expected.draw(uniform(p.seed, position))
    assume(expected.margin > 1e-5)
    assume(distance > 1e-5)
    assert choose(logits, p, position) == token


@given(logits=rows, p=filtered)
@settings(max_examples=300, deadline=None)
def test_best_first_is_a_prefix_of_the_order_that_is_long_enough(logits: Row, p: SamplingParams) -> None:
    assume(p.top_k or p.top_p < 1 or p.min_p)
    expected = reference(logits, p)
    assume(expected.margin > 1e-5)
    scaled = (logits - logits.max()) / np.float32(max(p.temperature, 1e-6))
    weights = np.exp(scaled)
    found = _best_first(scaled, weights, float(weights.sum(dtype=np.float64)), p).tolist()
    order = sorted(range(len(scaled)), key=lambda i: (-float(scaled[i]), i))
    assert found == order[: len(found)]
    assert len(found) >= sum(weight > 1e-44 for weight in expected.weights), "less is 0 in float32"


def test_a_peaked_row_is_not_sorted_whole() -> None:
    """What the reach is for: a filter on a large vocabulary looks at the few tokens near the best."""
    logits = logits_of("peaked", 50_000, 1)
    p = SamplingParams(temperature=1.0, top_p=0.9)
    weights = np.exp(logits - logits.max())
    assert len(_best_first(logits - logits.max(), weights, float(weights.sum()), p)) == 1


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ({"top_k": 1}, {3}),
        ({"top_k": 2}, {3, 1}),
        ({"top_p": 0.5}, {3}),  # the first token alone has 0.5
        ({"top_p": 0.51}, {3, 1}),
        ({"top_p": 0.76}, {3, 1, 0}),
        ({"min_p": 0.5}, {3, 1}),  # relative to the best
        ({"min_p": 0.24}, {3, 1, 0, 2}),
        ({"min_p": 1.0}, {3}),
        ({"top_k": 2, "top_p": 0.6}, {3}),  # the best has 2/3 of what top_k leaves
        ({"top_k": 2, "top_p": 0.7}, {3, 1}),
        ({"top_p": 0.99, "min_p": 0.4}, {3, 1}),
        ({"top_k": 100}, {0, 1, 2, 3}),
    ],
)
def test_what_a_filter_keeps(values: dict[str, float], kept: set[int]) -> None:
    """Probabilities 1/8, 1/4, 1/8, 1/2, exact in float32 but for rounding of the logarithm."""
    logits = np.log(row(1, 2, 1, 4))
    p = SamplingParams(temperature=1.0, seed=3, **values)  # type: ignore[arg-type]
    assert {choose(logits, p, position) for position in range(400)} == kept


@pytest.mark.parametrize(
    ("weights", "u", "index"),
    [
        ((1, 1), 0.0, 0),
        ((1, 1), 0.5, 1),  # a border belongs to what follows
        ((0, 1, 0), 0.0, 1),  # what has no weight is never drawn
        ((1, 0, 1), 0.5, 2),
        ((1, 3, 0), 0.999999, 1),
    ],
)
def test_a_draw_at_the_borders(weights: tuple[float, ...], u: float, index: int) -> None:
    assert draw(row(*weights), u) == index


def test_temperature_comes_before_the_filters() -> None:
    """At temperature 2 the best of 16:1 weighs 4:1, so top_p 0.85 needs a second token; at 1 it does not."""
    logits = row(math.log(16), 0.0)
    warm = SamplingParams(temperature=2.0, top_p=0.85, seed=1)
    cool = SamplingParams(temperature=1.0, top_p=0.85, seed=1)
    assert {choose(logits, warm, i) for i in range(200)} == {0, 1}
    assert {choose(logits, cool, i) for i in range(200)} == {0}


def test_greedy_takes_the_first_of_equals() -> None:
    logits = row(1, 5, 5, 0, 5)
    assert choose(logits, SamplingParams(), 0) == 1
    assert choose(logits, SamplingParams(temperature=1.0, top_k=1), 0) == 1
    assert choose(logits, SamplingParams(temperature=1.0, top_p=1e-9), 0) == 1


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e-6])
def test_the_coldest_temperatures_are_greedy(temperature: float) -> None:
    logits = row(-30_000, 29.99, 30, 25, 30_000, 29_999)
    for seed in range(50):
        assert choose(logits, SamplingParams(temperature=temperature, seed=seed), 0) == 4
        assert choose(logits, SamplingParams(temperature=temperature, seed=seed, top_p=0.5), 0) == 4


def test_forbidden_tokens_are_never_drawn() -> None:
    """A model may give minus infinity; no filter, however wide, brings such a token back."""
    logits = row(1.0, -math.inf, 0.5, -math.inf)
    for values in ({}, {"top_k": 4}, {"top_p": 0.999999}, {"min_p": 1e-9}, {"temperature": 2.0}):
        p = SamplingParams(**{"temperature": 1.0, "seed": 5, **values})  # type: ignore[arg-type]
        assert {choose(logits, p, position) for position in range(200)} == {0, 2}


def test_uniform_is_a_function_of_seed_and_position() -> None:
    first = uniform(42, 7)
    np.random.default_rng(0).random(100)
    uniform(1, 1)
    assert uniform(42, 7) == first
    assert uniform(2**63 - 1, 2**31) == uniform(2**63 - 1, 2**31)


def test_uniform_is_the_same_after_an_upgrade() -> None:
    """A stored seed must give the same text: Philox4x64-10, its key the seed, its counter the position."""
    assert uniform(0, 0) == 0.011546754286331562
    assert uniform(0, 1) == 0.5023796042735054
    assert uniform(1, 0) == 0.3035680343067586
    assert uniform(2**63 - 1, 2**31) == 0.9693538397681389


def test_uniform_differs_over_seeds_and_positions() -> None:
    numbers = {uniform(seed, position) for seed in range(60) for position in range(60)}
    assert len(numbers) == 3600


@pytest.mark.parametrize("along", ["positions", "seeds"])
def test_uniform_is_uniform(along: str) -> None:
    """Kolmogorov-Smirnov at p = 0.001, and no correlation of neighbours."""
    pairs = [(9, i) if along == "positions" else (i, 9) for i in range(DRAWS)]
    drawn = np.array([uniform(seed, position) for seed, position in pairs])
    assert 0 <= drawn.min() < drawn.max() < 1
    in_order = np.sort(drawn)
    steps = np.arange(DRAWS + 1) / DRAWS
    distance = max((steps[1:] - in_order).max(), (in_order - steps[:-1]).max())
    assert distance < 1.95 / math.sqrt(DRAWS)
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 4 / math.sqrt(DRAWS)
