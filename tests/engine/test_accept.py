"""Acceptance of drafts with a scripted model: what is emitted, and how often the model is asked."""

from __future__ import annotations

import pytest

from engine.accept import sample_and_match
from engine.sampling import Choice


def walk(draft: list[int], model: list[int]) -> tuple[list[int], list[int]]:
    """(tokens emitted, offsets asked for) where the model chooses model[i] after i accepted tokens."""
    asked: list[int] = []

    def choose(i: int) -> Choice:
        asked.append(i)
        return Choice(model[i])

    return [choice.token for choice in sample_and_match(draft, choose)], asked


def test_no_draft_emits_one_token() -> None:
    assert walk([], [7]) == ([7], [0])


def test_all_accepted_emits_one_more_than_drafted() -> None:
    assert walk([1, 2, 3], [1, 2, 3, 9]) == ([1, 2, 3, 9], [0, 1, 2, 3])


def test_none_accepted_emits_the_models_own_choice() -> None:
    assert walk([1, 2, 3], [5]) == ([5], [0])


@pytest.mark.parametrize("accepted", [1, 2])
def test_some_accepted_end_with_the_first_that_differs(accepted: int) -> None:
    draft = [1, 2, 3]
    model = [*draft[:accepted], 8]
    assert walk(draft, model) == (model, list(range(accepted + 1)))


def test_a_later_match_does_not_count_after_a_refusal() -> None:
    assert walk([1, 2, 3], [1, 8, 3, 4]) == ([1, 8], [0, 1])


def test_token_zero_is_a_token() -> None:
    assert walk([0, 0], [0, 0, 0]) == ([0, 0, 0], [0, 1, 2])


def test_choices_are_handed_on_whole() -> None:
    made = [Choice(1, -0.5, ((1, -0.5),)), Choice(4, -0.1)]
    assert sample_and_match([1], made.__getitem__) == made


def test_an_error_of_the_model_is_not_swallowed() -> None:
    def fail(_: int) -> Choice:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sample_and_match([1], fail)
