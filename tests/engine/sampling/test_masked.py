"""Choices among allowed tokens against the definition: refused tokens masked, then everything as usual."""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine import DecodeFailed, SamplingParams
from engine.base.request import Acceptance
from engine.sampling.grammar import Mask
from engine.sampling.sampler import Row, Sampler, choose, log_probabilities, uniform
from tests.engine.helpers.sampling import (
    FILTERS,
    NO_PROMPT,
    PEAKED,
    Float64,
    filtered,
    follows,
    reference,
    row,
    rows,
)


class Only:
    """Allows these tokens, whatever came before; remembers what it accepted."""

    def __init__(self, size: int, tokens: AbstractSet[int]) -> None:
        self._mask = only(size, tokens)
        self.accepted: list[int] = []

    def allowed(self) -> Mask:
        return self._mask

    def accept(self, token: int) -> None:
        assert self._mask[token]
        self.accepted.append(token)


def only(size: int, tokens: AbstractSet[int]) -> Mask:
    return np.isin(np.arange(size), sorted(tokens))


def probabilities(logits: Row, tokens: AbstractSet[int], p: SamplingParams) -> Float64:
    """Of the distribution masked before the filters, in float64."""
    ids = sorted(tokens)
    result = np.zeros(len(logits))
    result[ids] = reference(logits[ids], p).probabilities(len(ids))
    return result


ALLOWED = {1, 2, 5, 6, 7}  # of PEAKED without its best two and two others
MASK = only(len(PEAKED), ALLOWED)
DRAWS = 5_000  # so many tell a mask at the wrong place from chance


@pytest.mark.parametrize("values", FILTERS, ids=str)
def test_draws_follow_the_masked_distribution(values: dict[str, float]) -> None:
    p = SamplingParams(seed=11, **values)  # type: ignore[arg-type]
    drawn = [choose(PEAKED, p, position, MASK) for position in range(DRAWS)]
    observed = np.bincount(drawn, minlength=len(PEAKED)).astype(np.float64)
    assert follows(observed, probabilities(PEAKED, ALLOWED, p))


@pytest.mark.parametrize("values", FILTERS[3:], ids=str)
def test_masking_after_the_filters_would_be_noticed(values: dict[str, float]) -> None:
    """What is left when filters come first is another distribution: the test above can fail."""
    p = SamplingParams(seed=11, **values)  # type: ignore[arg-type]
    drawn = [choose(PEAKED, p, position) for position in range(DRAWS)]
    kept = [token for token in drawn if token in ALLOWED]
    observed = np.bincount(kept, minlength=len(PEAKED)).astype(np.float64)
    assert not len(kept) or not follows(observed, probabilities(PEAKED, ALLOWED, p))


allowed_shares = st.sampled_from([0.02, 0.3, 0.9, 1.0])


def some(size: int, share: float, seed: int) -> set[int]:
    drawn = np.random.default_rng(seed).random(size) < share
    return set(np.flatnonzero(drawn).tolist()) or {seed % size}


@given(logits=rows, p=filtered, share=allowed_shares)
@settings(max_examples=600, deadline=None)
def test_any_draw_is_the_reference_draw_among_the_allowed(
    logits: Row, p: SamplingParams, share: float
) -> None:
    tokens = some(len(logits), share, p.seed)
    ids = sorted(tokens)
    expected = reference(logits[ids], p)
    token, distance = expected.draw(uniform(p.seed, 3))
    assume(expected.margin > 1e-5)
    assume(distance > 1e-5)
    assert choose(logits, p, 3, only(len(logits), tokens)) == ids[token]


@given(logits=rows, share=allowed_shares, seed=st.integers(0, 2**32), temperature=st.sampled_from([0.0, 1.0]))
@settings(max_examples=300, deadline=None)
def test_a_choice_is_allowed_however_unlikely_that_is(
    logits: Row, share: float, seed: int, temperature: float
) -> None:
    tokens = some(len(logits), share, seed)
    p = SamplingParams(temperature=temperature, seed=seed)
    chosen = choose(logits, p, 0, only(len(logits), tokens))
    assert chosen in tokens
    assert temperature or logits[chosen] == max(logits[token] for token in tokens)


def test_allowed_tokens_below_all_weight_are_drawn_by_their_own_weights() -> None:
    """Two allowed tokens 300 nats below the best: in float32 they weigh nothing beside it."""
    logits = row(0.0, -300.0, -301.0)
    p = SamplingParams(temperature=1.0, seed=4)
    drawn = [choose(logits, p, position, only(3, {1, 2})) for position in range(DRAWS // 4)]
    observed = np.bincount(drawn, minlength=3).astype(np.float64)
    assert follows(observed, np.array([0, *reference(logits[1:], p).probabilities(2)]))


def test_a_grammar_that_allows_everything_changes_no_draw() -> None:
    everything = np.ones(len(PEAKED), dtype=np.bool_)
    for values in ({}, {"temperature": 0.9}, {"temperature": 0.9, "top_p": 0.8}):
        p = SamplingParams(seed=6, **values)  # type: ignore[arg-type]
        for position in range(200):
            assert choose(PEAKED, p, position, everything) == choose(PEAKED, p, position)


@pytest.mark.parametrize("values", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5}], ids=str)
def test_where_nothing_is_allowed_the_request_fails(values: dict[str, float]) -> None:
    p = SamplingParams(**values)  # type: ignore[arg-type]
    with pytest.raises(DecodeFailed) as failed:
        choose(PEAKED, p, 0, only(len(PEAKED), set()))
    assert failed.value.code == "grammar_dead_end"


def test_what_the_model_forbids_is_not_drawn_because_it_is_all_that_is_allowed() -> None:
    with pytest.raises(DecodeFailed) as failed:
        choose(row(1.0, -math.inf), SamplingParams(temperature=1.0), 0, only(2, {1}))
    assert failed.value.code == "grammar_dead_end"


def test_logits_that_are_no_numbers_are_not_the_grammars_fault() -> None:
    with pytest.raises(DecodeFailed) as failed:
        choose(row(math.nan, 1.0), SamplingParams(), 0, only(2, {1}))
    assert failed.value.code == "invalid_logits"


# In the sampler


def test_accepted_is_what_was_chosen() -> None:
    held = Only(4, {1, 3})
    sampler = Sampler(SamplingParams(presence_penalty=2.0), NO_PROMPT, held)
    chosen = [sampler.next(row(9, 4, 8, 3.5), i).token for i in range(3)]
    assert chosen == held.accepted == [1, 3, 1]


def test_logprobs_are_those_of_the_model_before_the_grammar() -> None:
    logits = row(3.0, 1.0, 2.0)
    choice = Sampler(SamplingParams(logprobs=2), NO_PROMPT, Only(3, {1})).next(logits, 0)
    expected = log_probabilities(logits)
    assert (choice.token, choice.logprob) == (1, expected[1])
    assert choice.top == ((0, expected[0]), (2, expected[2]))


def test_a_typical_candidate_must_be_allowed() -> None:
    logits = row(2.0, 1.9, 1.8)
    lossy = SamplingParams(temperature=1.0, seed=4, acceptance=Acceptance.TYPICAL)
    for i in range(50):
        assert Sampler(lossy, NO_PROMPT, Only(3, {0, 2})).next(logits, i, [1, 2]).token == 2
        plain = Sampler(lossy, NO_PROMPT, Only(3, {0, 2})).next(logits, i).token
        assert Sampler(lossy, NO_PROMPT, Only(3, {0, 2})).next(logits, i, [1]).token == plain
