"""The sampler of a request: bias and penalties, log-probabilities, broken logits, typical acceptance."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import DecodeFailed, SamplingParams
from engine.base.request import Acceptance
from engine.sampling.sampler import Row, SampledToken, Sampler, choose, log_probabilities, typical
from tests.engine.helpers.sampling import (
    DRAWS,
    NO_PROMPT,
    PEAKED,
    Float64,
    follows,
    logits_of,
    reference,
    row,
    rows,
)

pytestmark = pytest.mark.slow

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


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(0, 20))
def test_the_likeliest_are_those_of_sorting_all(values: list[int], count: int) -> None:
    logits = np.array(values, np.float32)
    sampled = Sampler(SamplingParams(temperature=0, logprobs=count), NO_PROMPT).next(logits, 0)
    best = sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
    assert [token for token, _ in sampled.top] == best


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
