"""Acceptance of token trees with a scripted model: what is emitted, and how often the model is asked."""

from __future__ import annotations

import pytest

from engine.accept import sample_and_match
from engine.draft import ROOT, Node, Tree, chain
from engine.sampling import Choice


def walk(tree: Tree, model: list[int]) -> tuple[list[int], list[int], list[int]]:
    """(tokens emitted, nodes accepted, nodes asked for) where the model chooses model[i] after i tokens."""
    asked: list[int] = []

    def choose(node: int, offset: int, candidates: list[int]) -> Choice:
        assert candidates == [n.token for n in tree if n.parent == node]
        assert offset == len(asked)
        asked.append(node)
        return Choice(model[offset])

    emitted, accepted = sample_and_match(tree, choose)
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
