"""What a request gets does not depend on how it was run: to the bit, on the default model."""

from __future__ import annotations

import functools

import pytest

from engine import Completion, Request
from tests.engine.helpers.drive import QUESTIONS, alone, completions, fresh, in_turn, request, run, same
from tests.engine.helpers.known_drafts import WAYS, Bushy, Scripted

pytestmark = pytest.mark.slow

SAMPLERS: dict[str, dict[str, object]] = {
    "greedy": {},
    "warm": {"temperature": 0.8, "top_p": 0.9, "seed": 11},
    "hot": {"temperature": 1.5, "top_k": 40, "min_p": 0.02, "seed": 12},
    "penalised": {
        "temperature": 0.7,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "seed": 13,
    },
}

# The format decides how logits are computed, and not what is made of them.
FORMATS = pytest.mark.parametrize("weights", ["as_shipped", pytest.param("bf16", marks=pytest.mark.thorough)])


def questions() -> list[Request]:
    return in_turn(QUESTIONS, SAMPLERS, max_tokens=16, logprobs=3)


@functools.cache
def one_by_one(weights: str) -> dict[str, Completion]:
    """The answers to the questions, each without others and without drafts."""
    return alone(None, questions(), batch_invariant=True, weights=weights)


@FORMATS
def test_batched_equals_single_to_the_bit_on_the_default_model(weights: str) -> None:
    requests = questions()
    config = {"batch_invariant": True, "weights": weights}
    reference = one_by_one(weights)
    shared = completions(run(fresh(None, slots=8, **config), requests))
    unshared = completions(run(fresh(None, slots=8, prefix_sharing=False, **config), requests))
    assert sum(c.cached_tokens for c in shared.values()) > 40
    assert sum(c.cached_tokens for c in unshared.values()) == 0
    for name in reference:
        same(shared[name], reference[name])
        same(unshared[name], reference[name])


def test_same_seed_same_text_whatever_shares_the_batch() -> None:
    subject = request("subject", QUESTIONS[1], temperature=1.0, seed=5, logprobs=2)
    reference = alone(None, [subject], batch_invariant=True)["subject"]
    other = alone(None, [request("subject", QUESTIONS[1], temperature=1.0, seed=6)], batch_invariant=True)
    assert other["subject"].tokens != reference.tokens
    for company in (QUESTIONS[2:5], QUESTIONS[4:8]):
        crowd = [request(f"c{i}", q, temperature=1.3, seed=i) for i, q in enumerate(company)]
        results = completions(run(fresh(None, slots=8, batch_invariant=True), [*crowd, subject]))
        same(results["subject"], reference)


@pytest.mark.parametrize("turn", [0, 1])
def test_drafted_equals_undrafted_to_the_bit(turn: int) -> None:
    """Each way beside the others; of the first turn and the second each sampler has two ways."""
    requests = questions()
    config = {"batch_invariant": True, "weights": "as_shipped"}
    reference = one_by_one("as_shipped")
    ways = [*WAYS[turn:], *WAYS[:turn]]
    drafts = Scripted({n: c.tokens for n, c in reference.items()}, ways, 49000)
    drafted = completions(run(fresh(None, drafts, slots=8, **config), requests))
    for name in reference:
        same(drafted[name], reference[name])


@FORMATS
def test_trees_equal_undrafted_to_the_bit(weights: str) -> None:
    requests = questions()
    config = {"batch_invariant": True, "weights": weights}
    reference = one_by_one(weights)
    drafts = Bushy({n: c.tokens for n, c in reference.items()}, 49000, 5, nodes=5)
    results = completions(run(fresh(None, drafts, slots=8, **config), requests))
    for name in reference:
        same(results[name], reference[name])
    assert drafts.accepted > 20
    assert not drafts.branched, "cells of a branch would lie in another order"
