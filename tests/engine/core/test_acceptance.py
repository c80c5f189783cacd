"""Acceptance of token trees with a scripted model: what is emitted, and how often the model is asked."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from engine import SamplingParams
from engine.base.errors import DecodeFailed
from engine.base.request import Acceptance
from engine.core.acceptance import accept
from engine.core.token_tree import ROOT, Node, Tree, chain
from engine.sampling.sampler import SampledToken, Sampler
from tests.engine.helpers.sampling import NO_PROMPT, Float64, follows, reference


def walk(tree: Tree, model: list[int]) -> tuple[list[int], list[int], list[int]]:
    """(tokens emitted, nodes accepted, nodes asked for) where the model chooses model[i] after i tokens."""
    asked: list[int] = []

    def choose(node: int, offset: int, candidates: list[int]) -> SampledToken:
        assert candidates == [n.token for n in tree if n.parent == node]
        assert offset == len(asked)
        asked.append(node)
        return SampledToken(model[offset])

    emitted, accepted = accept(tree, choose)
    return [choice.token for choice in emitted], accepted, asked


def test_no_tree_emits_one_token() -> None:
    assert walk([], [7]) == ([7], [], [ROOT])


def test_all_accepted_emits_one_more_than_drafted() -> None:
    assert walk(chain([1, 2, 3], "-"), [1, 2, 3, 9]) == ([1, 2, 3, 9], [0, 1, 2], [ROOT, 0, 1, 2])


def test_none_accepted_emits_the_models_own_choice() -> None:
    assert walk(chain([1, 2, 3], "-"), [5]) == ([5], [], [ROOT])


@pytest.mark.parametrize("accepted", [1, 2])
def test_some_accepted_end_with_the_first_that_differs(accepted: int) -> None:
    draft = [1, 2, 3]
    model = [*draft[:accepted], 8]
    assert walk(chain(draft, "-"), model) == (model, [*range(accepted)], [ROOT, *range(accepted)])


def test_a_choice_that_fails_leaves_those_before_it() -> None:
    asked: list[int] = []

    def choose(node: int, offset: int, _candidates: list[int]) -> SampledToken:
        asked.append(node)
        if offset == failing:
            raise DecodeFailed("no token goes on")
        return SampledToken(offset + 1)

    for failing in (1, 2):
        emitted, accepted = accept(chain([1, 2, 3], "-"), choose)
        assert [choice.token for choice in emitted] == [1, 2][:failing]
        assert accepted == [0][: failing - 1]  # the last that is emitted is decoded by the next step
    failing = 0
    with pytest.raises(DecodeFailed):
        accept(chain([1, 2, 3], "-"), choose)
    assert asked == [ROOT, 0, ROOT, 0, 1, ROOT]


BUSH = [
    Node(1, ROOT, 0.6, "-", 1),
    Node(2, ROOT, 0.3, "-", 1),
    Node(5, 0, 0.2, "-", 2),
    Node(5, 1, 0.2, "-", 2),
    Node(6, 3, 0.1, "-", 3),
]


@pytest.mark.parametrize(
    ("model", "accepted"),
    [([2, 5, 6, 9], [1, 3, 4]), ([1, 5, 6], [0, 2]), ([2, 6], [1]), ([5], [])],
)
def test_the_walk_follows_the_branch_that_the_model_takes(model: list[int], accepted: list[int]) -> None:
    """The same token below another parent is another node."""
    assert walk(BUSH, model) == (model, accepted, [ROOT, *accepted])


# Whole runs of three tokens against their distribution

RUNS = 6_000  # of requests; so many tell every fault below from chance

# After each of 4 tokens, and at the start.
LOGITS = (np.random.default_rng(3).standard_normal((5, 4)) * 0.6).astype(np.float32)
FIRST = 4
RUN = 3
TREE = [  # three levels, two branches
    Node(0, ROOT, 0.6, "-", 1),
    Node(2, ROOT, 0.3, "-", 1),
    Node(1, 0, 0.4, "-", 2),
    Node(3, 1, 0.2, "-", 2),
    Node(0, 2, 0.2, "-", 3),
]
CHAINS: dict[str, dict[str, object]] = {
    "warm": {"temperature": 1.0},
    "filtered": {"temperature": 1.3, "top_k": 3, "min_p": 0.05},
    "narrow": {"temperature": 0.8, "top_p": 0.85},
}


def distribution(params: SamplingParams) -> Float64:
    """Of all runs of three tokens, in float64, whatever is drafted."""
    after = [reference(row, params).probabilities(4) for row in LOGITS]
    runs = itertools.product(range(4), repeat=RUN)
    return np.array([after[FIRST][a] * after[a][b] * after[b][c] for a, b, c in runs])


def speculative_runs(params: SamplingParams, place: Callable[[int, int], int]) -> Float64:
    """Counts of the runs that so many seeds give with the tree.

    place(first, offset): output position by which the draw `offset` tokens into a step is keyed.
    """
    observed = np.zeros(4**RUN)
    for seed in range(RUNS):
        sampler = Sampler(replace(params, seed=seed), NO_PROMPT)
        run: list[int] = []
        while len(run) < RUN:
            # The tree is right for the first step alone; as in the engine, later ones get another.
            tree = TREE if not run else TREE[:1]

            def choose(node: int, offset: int, candidates: list[int]) -> SampledToken:
                last = run[-1] if node == ROOT and run else FIRST if node == ROOT else tree[node].token  # noqa: B023
                return sampler.next(LOGITS[last], place(len(run), offset), candidates)  # noqa: B023

            emitted, _ = accept(tree, choose)
            run += [choice.token for choice in emitted]
        observed[int("".join(map(str, run[:RUN])), 4)] += 1
    return observed


def by_position(first: int, offset: int) -> int:
    return first + offset


@pytest.mark.parametrize("values", CHAINS.values(), ids=CHAINS)
@pytest.mark.slow
def test_speculative_runs_follow_the_distribution(values: dict[str, object]) -> None:
    params = SamplingParams(**values)  # type: ignore[arg-type]
    assert follows(speculative_runs(params, by_position), distribution(params))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda first, _offset: first,  # one random number for a whole step
        lambda _first, offset: offset,  # every step starts with the same one
        lambda first, offset: first + 2 * offset % 3,  # a position of a step used again by the next
    ],
    ids=["the step", "the offset", "a later position"],
)
@pytest.mark.slow
def test_draws_keyed_by_a_wrong_position_would_be_noticed(wrong: Callable[[int, int], int]) -> None:
    params = SamplingParams(temperature=1.0)
    assert not follows(speculative_runs(params, wrong), distribution(params))


def test_typical_acceptance_would_be_noticed() -> None:
    params = SamplingParams(temperature=1.0, acceptance=Acceptance.TYPICAL)
    assert not follows(speculative_runs(params, by_position), distribution(params))
