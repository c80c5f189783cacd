"""Chances learned by counting."""

from __future__ import annotations

import json

import numpy as np
import pytest

from engine.medusa.calibration import (
    EDGES,
    PRIOR_TRIALS,
    RANKS,
    UNKNOWN_MEANS,
    UNSEEN_TRIALS,
    Calibration,
)
from engine.medusa.layouts import HeadsLoadError

HEADS = 3


def chance(calibration: Calibration, head: int, beside: int, rank: int, confidences: list[float]) -> float:
    chances = calibration.chances(head, bool(beside), confidences)
    assert len(chances) == len(confidences)
    return chances[rank]


def feed(
    calibration: Calibration, trials: int, hit_rate: float, confidences: list[float], seed: int = 0
) -> None:
    """One head, whose best candidate is right at this rate, and the second otherwise."""
    rng = np.random.default_rng(seed)
    for hit in rng.random(trials) < hit_rate:
        calibration.score([[10, 11]], [confidences], [10 if hit else 11])


def test_without_counts_the_softmax_probability_is_believed() -> None:
    calibration = Calibration(HEADS)
    for confidence in (0.005, 0.05, 0.25, 0.55, 0.85, 0.99):
        assert chance(calibration, 1, 0, 0, [confidence]) == pytest.approx(confidence, abs=0.05)


@pytest.mark.parametrize("truth", [0.0, 0.2, 0.9])
def test_counts_overrule_it(truth: float) -> None:
    calibration = Calibration(HEADS)
    feed(calibration, 2000, truth, [0.55, 0.35])
    assert chance(calibration, 0, 0, 0, [0.55, 0.35]) == pytest.approx(truth, abs=0.06)
    assert chance(calibration, 0, 0, 1, [0.55, 0.35]) == pytest.approx(1 - truth, abs=0.06)


def test_useless_heads_lose_all_trust_within_a_few_dozen_steps() -> None:
    calibration = Calibration(HEADS)
    for _ in range(50):
        calibration.score([[10, 11]], [[0.93, 0.02]], [99])
    assert chance(calibration, 0, 0, 0, [0.93, 0.02]) < 0.2


def test_old_counts_fade() -> None:
    calibration = Calibration(HEADS)
    feed(calibration, 5000, 1.0, [0.5])
    feed(calibration, 1500, 0.0, [0.5])
    assert chance(calibration, 0, 0, 0, [0.5]) < 0.1


def test_cells_are_apart() -> None:
    """By head, rank, confidence, and by whether a lesser candidate stands above."""
    calibration = Calibration(HEADS)
    others = [(head, beside) for head in range(HEADS) for beside in (False, True)]
    untouched = [calibration.chances(*cells, [0.65, 0.65]) for cells in others]
    feed(calibration, 500, 0.0, [0.55])
    assert [calibration.chances(*cells, [0.65, 0.65]) for cells in others] == untouched
    assert chance(calibration, 1, 0, 0, [0.55]) == chance(calibration, 0, 1, 0, [0.55]) > 0.5
    assert chance(calibration, 0, 0, 0, [0.55]) < 0.1


def test_a_later_head_counts_only_below_a_right_path() -> None:
    calibration = Calibration(2, window=np.inf)
    candidates, confidences = [[1, 2], [3, 4]], [[0.6, 0.3], [0.6, 0.3]]
    for emitted in ([9, 3], [9, 3], [1, 3], [1, 9], [2, 4]):
        calibration.score(candidates, confidences, emitted)
    counts = json.loads(calibration.to_json())
    best, second = np.searchsorted(EDGES, [0.6, 0.3], side="right")
    hits, trials = np.array(counts["hits"]), np.array(counts["trials"])
    assert trials[0, 0, 0, best] == trials[0, 0, 1, second] == 5
    assert (hits[0, 0, 0, best], hits[0, 0, 1, second]) == (2, 1)
    assert (trials[1, 0, 0, best], hits[1, 0, 0, best]) == (2, 1), "below the best candidate"
    assert (trials[1, 1, 0, best], hits[1, 1, 0, best]) == (1, 0), "below the second"
    assert (trials[1, 1, 1, second], hits[1, 1, 1, second]) == (1, 1)
    assert trials.sum() == 2 * 5 + 2 * 3


def test_chances_of_one_heads_candidates_are_those_of_exclusive_events() -> None:
    calibration = Calibration(1)
    for token in (10, 11, 12):
        for _ in range(300):
            calibration.score([[10, 11, 12]], [[0.3, 0.3, 0.3]], [token])
    assert sum(calibration.chances(0, False, [0.96] * RANKS)) == pytest.approx(1)


def test_counts_travel_as_a_prior_that_other_texts_can_overrule() -> None:
    trained = Calibration(HEADS, window=np.inf)
    feed(trained, 20_000, 0.8, [0.35])
    served = Calibration(HEADS)
    served.start_from(trained.to_json())
    assert chance(served, 0, 0, 0, [0.35]) == pytest.approx(0.8, abs=0.05)
    feed(served, 1500, 0.1, [0.35])
    assert chance(served, 0, 0, 0, [0.35]) == pytest.approx(0.25, abs=0.1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "cannot be read"),
        ("[]", "cannot be read"),
        ("{}", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ('{"edges": 1, "hits": [], "trials": []}', "cannot be read"),
        ('{"edges": [], "hits": [[1], [1, 2]], "trials": []}', "cannot be read"),
        (Calibration(HEADS + 1).to_json(), r"shape \(4, 2, 8, 16\), not \(3, 2, 8, 16\)"),
        (Calibration(HEADS).to_json().replace("0.97", "0.96"), "of other bins"),
        (Calibration(HEADS).to_json().replace("[[0.0", "[[2.0", 1), "more hits than trials"),
        (Calibration(HEADS).to_json().replace("[[0.0", "[[NaN"), "more hits than trials"),
    ],
)
def test_counts_that_do_not_fit_are_refused(text: str, reason: str) -> None:
    with pytest.raises(HeadsLoadError, match=reason) as refused:
        Calibration(HEADS).start_from(text)
    assert "\n" not in refused.value.message


def beside_the_guess(*shares: float) -> object:
    """Shares of the candidates in training, each beside what is guessed where nothing was counted."""
    means = ((PRIOR_TRIALS * s + UNSEEN_TRIALS * g) for s, g in zip(shares, UNKNOWN_MEANS, strict=False))
    return pytest.approx([mean / (PRIOR_TRIALS + UNSEEN_TRIALS) for mean in means], abs=1e-3)


def test_means_weigh_confidences_as_often_as_they_occurred() -> None:
    """Not alike: a candidate of rank 1 that is right when the head is unsure would seem to be right often."""
    trained = Calibration(1, window=np.inf)
    feed(trained, 10_000, 1.0, [0.95, 0.02])
    feed(trained, 1_000, 0.0, [0.35, 0.3])
    served = Calibration(1)
    served.start_from(trained.to_json())
    [[means, _]] = served.means()
    assert means[:2] == beside_the_guess(10 / 11, 1 / 11)
    feed(served, 200, 0.0, [0.95, 0.02])
    assert served.means()[0][0][0] == pytest.approx(0.5, abs=0.02), "what is served soon counts as much"


def test_without_counts_means_are_a_guess_in_which_one_candidate_is_right_at_most() -> None:
    [kinds] = Calibration(1).means()
    for means in kinds:
        assert means == sorted(means, reverse=True)
        assert 0.5 < sum(means) < 1


def test_means_below_other_than_best_candidates_are_counted_apart() -> None:
    trained = Calibration(2, window=np.inf)
    for _ in range(1000):
        trained.score([[1, 2], [1, 2]], [[0.6, 0.3]] * 2, [1, 1])  # the best of the first, and of the second
        trained.score([[1, 2], [1, 2]], [[0.6, 0.3]] * 2, [2, 2])  # the second best of both
    served = Calibration(2)
    served.start_from(trained.to_json())
    [[first, _], [below_best, below_others]] = served.means()
    assert first[:2] == beside_the_guess(0.5, 0.5)
    assert below_best[:2] == beside_the_guess(1, 0)
    assert below_others[:2] == beside_the_guess(0, 1)
