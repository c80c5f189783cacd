"""Choices among allowed tokens against the definition: refused tokens masked, then everything as usual."""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine import DecodeFailed, SamplingParams
from engine.allowed import Ids, _in_nucleus, best_allowed, draw_allowed
from engine.request import Acceptance
from engine.sampling import Row, Sampler, choose, log_probabilities, uniform
from tests.engine.test_sampling import (
    DRAWS,
    FILTERS,
    NO_PROMPT,
    PEAKED,
    Float64,
    filtered,
    follows,
    logits_of,
    reference,
    row,
    rows,
)


class Only:
    """Allows these tokens, whatever came before; counts what it was asked and remembers what it accepted."""

    def __init__(self, tokens: AbstractSet[int] | range) -> None:
        self._tokens = np.array(sorted(tokens), dtype=np.int64)
        self.asked = 0
        self.accepted: list[int] = []

    def allowed(self, ids: Ids) -> NDArray[np.bool_]:
        self.asked += len(ids)
        return np.isin(ids, self._tokens)

    def accept(self, token: int) -> None:
        assert token in self._tokens
        self.accepted.append(token)


def masked(logits: Row, tokens: AbstractSet[int]) -> Row:
    result = np.full_like(logits, -np.inf)
    for token in tokens:
        result[token] = logits[token]
    return result


def probabilities(logits: Row, tokens: AbstractSet[int], p: SamplingParams) -> Float64:
    """Of the distribution masked before the filters, in float64."""
    ids = sorted(tokens)
    result = np.zeros(len(logits))
    result[ids] = reference(logits[ids], p).probabilities(len(ids))
    return result


ALLOWED = {1, 2, 5, 6, 7}  # of PEAKED without its best two and two others


@pytest.mark.parametrize("values", FILTERS, ids=str)
def test_draws_follow_the_masked_distribution(values: dict[str, float]) -> None:
    p = SamplingParams(seed=11, **values)  # type: ignore[arg-type]
    only = Only(ALLOWED)
    drawn = [choose(PEAKED, p, position, only) for position in range(DRAWS)]
    observed = np.bincount(drawn, minlength=len(PEAKED)).astype(np.float64)
    assert follows(observed, probabilities(PEAKED, ALLOWED, p))


@pytest.mark.parametrize("values", FILTERS[3:], ids=str)
def test_masking_after_the_filters_would_be_noticed(values: dict[str, float]) -> None:
    """What is left when filters come first is another distribution: the test above can fail."""
    p = SamplingParams(seed=11, **values)  # type: ignore[arg-type]
    drawn = [choose(PEAKED, p, position) for position in range(3 * DRAWS)]
    kept = [token for token in drawn if token in ALLOWED][:DRAWS]
    observed = np.bincount(kept, minlength=len(PEAKED)).astype(np.float64)
    assert not len(kept) or not follows(observed, probabilities(PEAKED, ALLOWED, p))


allowed_shares = st.sampled_from([0.02, 0.3, 0.9, 1.0])


def some(size: int, share: float, seed: int) -> set[int]:
    drawn = np.random.default_rng(seed).random(size) < share
    return set(np.flatnonzero(drawn).tolist()) or {seed % size}


@given(logits=rows, share=allowed_shares, seed=st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_greedy_takes_the_first_of_the_best_allowed(logits: Row, share: float, seed: int) -> None:
    tokens = some(len(logits), share, seed)
    assert best_allowed(logits, Only(tokens)) == int(masked(logits, tokens).argmax())


@given(logits=rows, p=filtered, share=allowed_shares, u=st.floats(0, 0.999999))
@settings(max_examples=600, deadline=None)
def test_any_draw_in_order_is_the_reference_draw(
    logits: Row, p: SamplingParams, share: float, u: float
) -> None:
    assume(p.top_k or p.min_p)
    tokens = some(len(logits), share, p.seed)
    ids = sorted(tokens)
    expected = reference(logits[ids], p)
    token, distance = expected.draw(u)
    assume(expected.margin > 1e-5)
    assume(distance > 1e-5)
    scaled = (logits - logits.max()) / np.float32(max(p.temperature, 1e-6))
    assert draw_allowed(scaled, p, Only(tokens), lambda _: u) == ids[token]


@given(logits=rows, top_p=st.floats(1e-6, 0.999), share=allowed_shares, seed=st.integers(0, 2**32))
@settings(max_examples=600, deadline=None)
def test_a_nucleus_is_that_of_the_masked_distribution(
    logits: Row, top_p: float, share: float, seed: int
) -> None:
    tokens = some(len(logits), share, seed)
    ids = sorted(tokens)
    p = SamplingParams(temperature=1.0, top_p=top_p, seed=seed)
    expected = reference(logits[ids], p)
    assume(expected.margin > 1e-5)
    nucleus = {ids[i] for i in expected.ids}
    scaled = logits - logits.max()
    weights = np.exp(scaled)
    assume(weights[ids].sum() > 0.01)  # otherwise no token is tried
    for token in ids:
        assert _in_nucleus(token, scaled, weights, top_p, Only(tokens)) == (token in nucleus)
    assert choose(logits, p, 0, Only(tokens)) in nucleus


@given(logits=rows, share=allowed_shares, seed=st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_a_draw_is_allowed_however_unlikely_that_is(logits: Row, share: float, seed: int) -> None:
    tokens = some(len(logits), share, seed)
    p = SamplingParams(temperature=1.0, seed=seed)
    assert choose(logits, p, 0, Only(tokens)) in tokens


def test_allowed_tokens_below_all_weight_are_drawn_by_their_own_weights() -> None:
    """Two allowed tokens 300 nats below the best: in float32 they weigh nothing beside it."""
    logits = row(0.0, -300.0, -301.0)
    p = SamplingParams(temperature=1.0, seed=4)
    drawn = [choose(logits, p, position, Only({1, 2})) for position in range(DRAWS // 4)]
    observed = np.bincount(drawn, minlength=3).astype(np.float64)
    assert follows(observed, np.array([0, *reference(logits[1:], p).probabilities(2)]))


def test_a_grammar_that_allows_everything_changes_no_draw() -> None:
    for values in ({}, {"temperature": 0.9}):
        p = SamplingParams(seed=6, **values)  # type: ignore[arg-type]
        for position in range(200):
            assert choose(PEAKED, p, position, Only(range(len(PEAKED)))) == choose(PEAKED, p, position)


def test_further_tries_have_random_numbers_of_their_own() -> None:
    numbers = {uniform(seed, position, i) for seed in range(20) for position in range(20) for i in range(4)}
    assert len(numbers) == 1600
    assert uniform(5, 6, 0) == uniform(5, 6)


# How much is tested

VOCABULARY = 50_000


@pytest.mark.parametrize(
    ("values", "most"),
    [({}, 1), ({"temperature": 0.8}, 3), ({"temperature": 0.8, "top_p": 0.9}, 1500)],
    ids=str,
)
def test_few_tokens_are_tested_where_nearly_all_are_allowed(values: dict[str, float], most: int) -> None:
    logits = logits_of("normal", VOCABULARY, 2) * 2
    only = Only(set(range(VOCABULARY)) - {17})
    for position in range(20):
        only.asked = 0
        choose(logits, SamplingParams(seed=1, **values), position, only)  # type: ignore[arg-type]
        assert only.asked <= most


@pytest.mark.parametrize("values", [{}, {"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.1}], ids=str)
def test_few_tokens_are_tested_where_the_model_is_sure_of_an_allowed_one(values: dict[str, float]) -> None:
    logits = logits_of("normal", VOCABULARY, 2)
    logits[1234] = logits.max() + 12
    only = Only({1234, 1235})
    assert choose(logits, SamplingParams(temperature=0.8, **values), 0, only) == 1234  # type: ignore[arg-type]
    assert only.asked <= 100


# In the sampler


def test_accepted_is_what_was_chosen() -> None:
    only = Only({1, 3})
    sampler = Sampler(SamplingParams(presence_penalty=2.0), NO_PROMPT, only)
    chosen = [sampler.next(row(9, 4, 8, 3.5), i).token for i in range(3)]
    assert chosen == only.accepted == [1, 3, 1]


def test_logprobs_are_those_of_the_model_before_the_grammar() -> None:
    logits = row(3.0, 1.0, 2.0)
    choice = Sampler(SamplingParams(logprobs=2), NO_PROMPT, Only({1})).next(logits, 0)
    expected = log_probabilities(logits)
    assert (choice.token, choice.logprob) == (1, expected[1])
    assert choice.top == ((0, expected[0]), (2, expected[2]))


def test_a_typical_candidate_must_be_allowed() -> None:
    logits = row(2.0, 1.9, 1.8)
    lossy = SamplingParams(temperature=1.0, seed=4, acceptance=Acceptance.TYPICAL)
    for i in range(50):
        assert Sampler(lossy, NO_PROMPT, Only({0, 2})).next(logits, i, [1, 2]).token == 2
        plain = Sampler(lossy, NO_PROMPT, Only({0, 2})).next(logits, i).token
        assert Sampler(lossy, NO_PROMPT, Only({0, 2})).next(logits, i, [1]).token == plain


@pytest.mark.parametrize("values", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5}], ids=str)
def test_where_nothing_is_allowed_the_request_fails(values: dict[str, float]) -> None:
    p = SamplingParams(**values)  # type: ignore[arg-type]
    for logits in (PEAKED, masked(PEAKED, {3})):
        with pytest.raises(DecodeFailed) as failed:
            choose(logits, p, 0, Only({99}))
        assert failed.value.code == "grammar_dead_end"


def test_what_the_model_forbids_is_not_drawn_because_it_is_all_that_is_allowed() -> None:
    with pytest.raises(DecodeFailed) as failed:
        choose(row(1.0, -math.inf), SamplingParams(temperature=1.0), 0, Only({1}))
    assert failed.value.code == "grammar_dead_end"


def test_a_draw_needs_no_more_numbers_than_it_has_tries() -> None:
    """Each refused try takes a further number; the last one is for the tokens in their order."""
    asked: list[int] = []

    def number(i: int) -> float:
        asked.append(i)
        return 0.5

    scaled = logits_of("flat", 40, 0)
    token = draw_allowed(scaled, SamplingParams(temperature=1.0), Only({0, 1}), number)
    assert token in (0, 1)
    assert asked == [0, 1, 2, 3]
    assert partial(uniform, 1, 2)(asked[-1]) == uniform(1, 2, 3)
