"""The sampler against float64 definitions, its draws against the distribution they claim to follow."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine import DecodeFailed, SamplingParams
from engine.base.request import Acceptance
from engine.sampling.sampler import (
    Row,
    SampledToken,
    Sampler,
    _best_first,
    choose,
    draw,
    log_probabilities,
    typical,
    uniform,
)

pytestmark = pytest.mark.slow

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


def counts(logits: Row, p: SamplingParams) -> Float64:
    drawn = [choose(logits, p, position) for position in range(DRAWS)]
    return np.bincount(drawn, minlength=len(logits)).astype(np.float64)


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


# The random numbers


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


# Bias and penalties


def adjusted_by_definition(logits: Row, p: SamplingParams, prompt: list[int], output: list[int]) -> Float64:
    result = logits.astype(np.float64)
    for token in range(len(result)):
        x = result[token] + p.logit_bias.get(token, 0.0)
        if token in prompt or token in output:
            x = x / p.repetition_penalty if x > 0 else x * p.repetition_penalty
        n = output.count(token)
        result[token] = x - p.frequency_penalty * n - (p.presence_penalty if n else 0.0)
    return result


PENALTIES = [
    {},
    {"repetition_penalty": 1.8},
    {"repetition_penalty": 0.5},
    {"presence_penalty": 1.5},
    {"presence_penalty": -1.0},
    {"frequency_penalty": 0.7},
    {"frequency_penalty": -0.4},
    {"logit_bias": {0: 3.0, 5: -100.0}},
    {"logit_bias": {2: 2.5}, "repetition_penalty": 1.4, "presence_penalty": 0.3, "frequency_penalty": 0.9},
]


@pytest.mark.parametrize("values", PENALTIES, ids=str)
def test_bias_and_penalties_follow_their_definitions(values: dict[str, object]) -> None:
    p = SamplingParams(temperature=1.0, seed=2, **values)  # type: ignore[arg-type]
    prompt = [1, 4, 4]
    sampler = Sampler(p, np.array(prompt, dtype=np.int32))
    output: list[int] = []
    for position in range(30):
        logits = logits_of("normal", 8, position)
        logits[3] = 0.0
        before = logits.copy()
        expected = adjusted_by_definition(logits, p, prompt, output)
        np.testing.assert_allclose(sampler.adjust(logits), expected, rtol=1e-5, atol=1e-5)
        output.append(sampler.next(logits, position).token)
        assert np.array_equal(logits, before), "the model's row is not ours to change"
    assert len(set(output)) > 2


def test_without_penalties_the_row_is_not_copied() -> None:
    logits = row(1, 2, 3)
    assert Sampler(SamplingParams(), NO_PROMPT).adjust(logits) is logits


def test_bias_forces_and_forbids() -> None:
    forced = Sampler(SamplingParams(logit_bias={0: 100}), NO_PROMPT)
    forbidden = Sampler(SamplingParams(logit_bias={1: -100}), NO_PROMPT)
    assert forced.next(row(1, 9, 5), 0).token == 0
    assert forbidden.next(row(1, 9, 5), 0).token == 2


def test_greedy_with_a_presence_penalty_moves_on() -> None:
    sampler = Sampler(SamplingParams(presence_penalty=2.0), NO_PROMPT)
    assert [sampler.next(row(5, 4, 3.5), i).token for i in range(3)] == [0, 1, 2]


# Log-probabilities and broken logits


@given(logits=rows)
@settings(max_examples=150, deadline=None)
def test_log_probabilities_are_the_log_softmax(logits: Row) -> None:
    exact = [float(x) for x in logits]
    best = max(exact)
    norm = best + math.log(math.fsum(math.exp(x - best) for x in exact))
    np.testing.assert_allclose(log_probabilities(logits), [x - norm for x in exact], rtol=1e-12, atol=1e-12)


def test_reported_logprobs_are_before_temperature_and_after_bias() -> None:
    logits = row(0, 1, 2, 2)
    p = SamplingParams(temperature=0.01, top_k=1, logit_bias={0: 5.0}, logprobs=3)
    choice = Sampler(p, NO_PROMPT).next(logits, 0)
    expected = log_probabilities(row(5, 1, 2, 2))
    assert choice.token == 0
    assert choice.logprob == expected[0]
    assert choice.top == ((0, expected[0]), (2, expected[2]), (3, expected[3])), "best first, ties by id"


def test_logprobs_asked_for_or_not_change_no_choice() -> None:
    for n in (None, 0, 4, 20):
        sampler = Sampler(SamplingParams(temperature=1.0, seed=8, logprobs=n), NO_PROMPT)
        choices = [sampler.next(PEAKED, i) for i in range(20)]
        assert [c.token for c in choices] == [choose(PEAKED, sampler.params, i) for i in range(20)]
        assert all((c.logprob is None) == (n is None) for c in choices)
        assert all(len(c.top) == min(n or 0, len(PEAKED)) for c in choices)
    assert Sampler(SamplingParams(), NO_PROMPT).next(PEAKED, 0) == SampledToken(0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("at", [0, 2, 7])
@pytest.mark.parametrize("values", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5}], ids=str)
def test_logits_without_a_number_fail_the_request(bad: float, at: int, values: dict[str, float]) -> None:
    logits = PEAKED.copy()
    logits[at] = bad
    with pytest.raises(DecodeFailed) as failed:
        Sampler(SamplingParams(**values), NO_PROMPT).next(logits, 0)  # type: ignore[arg-type]
    assert failed.value.code == "invalid_logits"


def test_logits_that_forbid_everything_fail_the_request() -> None:
    with pytest.raises(DecodeFailed) as failed:
        Sampler(SamplingParams(), NO_PROMPT).next(np.full(8, -np.inf, dtype=np.float32), 0)
    assert failed.value.code == "invalid_logits"


# Typical acceptance


@pytest.mark.parametrize("seed", range(30))
def test_typical_tokens_are_those_of_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal(50) * rng.uniform(0.2, 4)).astype(np.float32)
    temperature = float(rng.uniform(0.3, 1.6))
    p = np.exp(logits.astype(np.float64) / temperature)
    p /= p.sum()
    threshold = min(0.09, 0.3 * math.exp(float((p * np.log(p)).sum())))
    clear = np.abs(p / threshold - 1) > 1e-3  # nearer to the border, float32 may fall either way
    candidates = [int(t) for t in rng.permutation(50)[:4] if clear[t]]
    best = max(candidates, key=lambda t: p[t])
    assert typical(logits, temperature, candidates) == (best if p[best] > threshold else None)


def test_exact_acceptance_ignores_the_candidates_and_typical_takes_them() -> None:
    logits = row(2.0, 1.9, -3.0)
    exact = SamplingParams(temperature=1.0, seed=4)
    lossy = SamplingParams(temperature=1.0, seed=4, acceptance=Acceptance.TYPICAL)
    plain = [Sampler(exact, NO_PROMPT).next(logits, i).token for i in range(50)]
    assert [Sampler(exact, NO_PROMPT).next(logits, i, [1]).token for i in range(50)] == plain
    assert [Sampler(lossy, NO_PROMPT).next(logits, i, [1]).token for i in range(50)] == [1] * 50
    assert [Sampler(lossy, NO_PROMPT).next(logits, i, [2]).token for i in range(50)] == plain, "too unlikely"
    assert [Sampler(lossy, NO_PROMPT).next(logits, i).token for i in range(50)] == plain


def test_greedy_stays_greedy_with_typical_acceptance() -> None:
    greedy = SamplingParams(acceptance=Acceptance.TYPICAL)
    assert Sampler(greedy, NO_PROMPT).next(row(2.0, 1.9), 0, [1]).token == 0


def test_drafted_draws_follow_the_distribution_and_typical_ones_do_not() -> None:
    """20,000 draws beside a drafted token: exact acceptance passes the test that typical acceptance fails."""
    logits = row(1.0, 0.5, 0.0, -0.5, -1.0)
    for acceptance, lossless in ((Acceptance.EXACT, True), (Acceptance.TYPICAL, False)):
        params = SamplingParams(temperature=1.0, seed=99, acceptance=acceptance)
        sampler = Sampler(params, NO_PROMPT)
        drawn = [sampler.next(logits, i, [1]).token for i in range(DRAWS)]
        observed = np.bincount(drawn, minlength=5).astype(np.float64)
        assert follows(observed, reference(logits, params).probabilities(5)) is lossless
