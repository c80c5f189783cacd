"""Scores and calibration against counting by hand."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.medusa.calibration import Calibration
from training.collection.dataset import Answer
from training.heads.scores import Scorer, calibrate, evaluate


class Fixed:
    """Two heads that guess, from a state that holds its place, what a table says: [place, head, rank]."""

    heads = 2
    sees_path = False

    def __init__(self, table: NDArray[np.int32]) -> None:
        self.metadata: dict[str, str] = {}
        self._table = table

    def propose(
        self,
        hidden: NDArray[np.float32],
        heads: int,
        top: int,
        first: int = 0,
        path: NDArray[np.int32] | None = None,
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        chosen = self._table[hidden[:, 0].astype(int), first:heads, :top]
        return chosen, np.broadcast_to(np.float32(0.45), chosen.shape)


def states(n: int) -> NDArray[np.float16]:
    return np.arange(n, dtype=np.float16)[:, None]


OUTPUT = np.array([10, 11, 12, 13, 14, 15], np.int32)


def table(*best: tuple[int, int]) -> NDArray[np.int32]:
    """The best guesses of two heads at each place; ranks below are 90, 91 and so on."""
    made = np.tile(np.arange(89, 97, dtype=np.int32), (len(best), 2, 1))
    made[:, :, 0] = best
    return made


def test_perfect_heads_are_accepted_whole() -> None:
    guesses = table(*[(11 + i, 12 + i) for i in range(6)])
    scores = evaluate(Fixed(guesses), [Answer(OUTPUT, states(6), False)])
    assert scores.top1 == scores.top5 == [1, 1]
    assert scores.tokens_per_step == 3
    assert scores.tokens == 6


def test_useless_heads_give_plain_decoding() -> None:
    scores = evaluate(Fixed(table(*[(0, 0)] * 6)), [Answer(OUTPUT, states(6), False)])
    assert (scores.top1, scores.top5, scores.tokens_per_step) == ([0, 0], [0, 0], 1)


def test_a_chain_ends_at_its_first_wrong_token_and_the_walk_goes_on_behind_it() -> None:
    # From place 0 head 1 is wrong: its right successor counts for top-1, and not for the chain. The walk
    # goes on at place 1, accepts both, and at 4 the answer is too short to tell.
    guesses = table((0, 12), (12, 13), (0, 0), (0, 0), (15, 0), (0, 0))
    scores = evaluate(Fixed(guesses), [Answer(OUTPUT, states(6), False)])
    assert scores.tokens_per_step == pytest.approx((1 + 3) / 2)
    assert scores.top1 == [pytest.approx(2 / 5), pytest.approx(2 / 4)]


def test_top5_looks_at_five() -> None:
    guesses = table(*[(0, 0)] * 6)
    guesses[0, 0, 4] = guesses[1, 0, 5] = 11
    guesses[1, 0, 5] = 12
    scores = evaluate(Fixed(guesses), [Answer(OUTPUT, states(6), False)])
    assert scores.top5 == [pytest.approx(1 / 5), 0]


def test_sampled_answers_are_not_scored() -> None:
    scores = evaluate(Fixed(table(*[(0, 0)] * 6)), [Answer(OUTPUT, states(6), True)])
    assert scores.tokens == 0
    assert scores.tokens_per_step == 1


def test_without_two_tokens_there_is_nothing_to_score() -> None:
    scores = evaluate(Fixed(table((11, 0))), [Answer(OUTPUT[:1], states(1), False)])
    assert (scores.tokens, scores.text()) == (0, "no greedy answer to score")


def test_an_answer_shorter_than_the_chain_counts_for_the_heads_it_reaches() -> None:
    scorer = Scorer(2)
    scorer.add(table((11, 0), (0, 0)), OUTPUT[:2])
    assert scorer.scores().top1 == [1, 0]
    assert scorer.scores().tokens_per_step == 1
    assert "1.000 tokens a step; top-1/top-5 1.000/1.000 0.000/0.000" in scorer.scores().text()


def test_calibration_counts_what_the_engine_reads() -> None:
    guesses = table(*[(11 + i if i % 2 else 0, 12 + i) for i in range(6)])
    heads = Fixed(guesses)
    counted = Calibration(2)
    counted.start_from(calibrate(heads, [Answer(OUTPUT, states(6), False)] * 100))
    [chance] = counted.chances(0, False, [0.45])
    assert chance == pytest.approx(2 / 5, abs=0.02)
    # The second head is counted only where the first was right: places 1 and 3, where it always is.
    [chance] = counted.chances(1, False, [0.45])
    assert chance > 0.9
