"""The time left that is told: right when it is told, steady, and bounded in what it remembers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cli.views.time_left import MOST_WINDOW_S, STEADY_S, Progress, TimeLeft
from tests.cli.views.batches import BATCHES, Look, between, looks

SHORT_S = 8.0  # what is left of the end, in which nobody needs an estimate
RISE, RISE_S = 0.15, 30.0  # of the whole time, and how long it may stay above what was told before


def told(batch: Sequence[Look], first: int = 0) -> list[tuple[Look, float]]:
    """first: place of the look at which somebody begins to watch."""
    total = batch[-1].progress.done + batch[-1].progress.running
    left = TimeLeft(batch[first].at, batch[first].progress)
    found = []
    for look in batch[first:]:
        left.note(look.at, look.progress, total)
        if (seconds := left.seconds(look.at)) is not None:
            found.append((look, seconds))
    return found


@pytest.mark.parametrize("name", BATCHES)
def test_it_is_within_a_factor_of_two(name: str) -> None:
    batch = BATCHES[name]
    found = [(look.left, seconds) for look, seconds in told(batch) if look.left > SHORT_S]
    assert len(found) > 3
    right = sum(left / 2 < seconds < left * 2 for left, seconds in found)
    assert right / len(found) > 0.8
    ratios = sorted(seconds / left for left, seconds in found)
    assert 0.75 < ratios[len(ratios) // 2] < 1.8, "as a rule it is nearer"


@pytest.mark.parametrize("name", BATCHES)
def test_it_does_not_rise_for_long(name: str) -> None:
    batch = BATCHES[name]
    lowest, since = told(batch)[0][1], 0.0
    for look, seconds in told(batch):
        if seconds <= lowest:
            lowest, since = seconds, look.at
        assert seconds - lowest < max(3.0, RISE * batch[0].left), f"at {look.at} s"
        assert look.at - since < RISE_S or seconds - lowest < 0.05 * batch[0].left, f"at {look.at} s"


def test_it_is_told_once_as_many_have_ended_as_run() -> None:
    (first, _), *_ = told(BATCHES["between"])
    assert first.progress.done >= first.progress.running > 0
    assert told(BATCHES["between"][: BATCHES["between"].index(first)]) == []


def test_it_follows_a_machine_that_gets_slower() -> None:
    batch = looks(between(400, 50, 150), slowed=lambda at: 1.0 if at < 60 else 2.0)
    late = [(look.left, seconds) for look, seconds in told(batch) if look.at > 200]
    assert all(left / 1.5 < seconds < left * 1.5 for left, seconds in late if left > 2 * SHORT_S)


def test_who_comes_later_hears_the_same() -> None:
    """As the command that goes on with a run, or a page that is opened."""
    batch = BATCHES["between, many"]
    late = [(look.left, seconds) for look, seconds in told(batch, first=800)]
    assert len(late) > 100
    assert all(left / 1.5 < seconds < left * 1.5 for left, seconds in late if left > 2 * SHORT_S)


def test_a_request_that_begins_anew_takes_nothing_back() -> None:
    batch = BATCHES["between, many"]
    total = batch[-1].progress.done + batch[-1].progress.running
    left = TimeLeft(0.0, Progress(0, 0, 0))
    for look in batch[:400]:
        left.note(look.at, look.progress, total)
    before = left.seconds(batch[399].at)
    lost = batch[399].progress
    left.note(batch[400].at, Progress(lost.done, lost.failed, lost.tokens), total)
    assert left.seconds(batch[400].at) == pytest.approx(before, rel=0.05)


def test_where_nothing_comes_any_more_nothing_is_told() -> None:
    batch = BATCHES["between, many"]
    left, last = TimeLeft(0.0, Progress(0, 0, 0)), batch[199]
    for look in batch[:200]:
        left.note(look.at, look.progress, 1000)
    assert left.seconds(last.at) is not None
    for later in range(600):
        left.note(last.at + later, last.progress, 1000)
    assert left.seconds(last.at + 600) is None


def test_what_is_remembered_is_bounded() -> None:
    left = TimeLeft(0.0, Progress(0, 0, 0))
    for quarter in range(40_000):
        left.note(quarter / 4, Progress(quarter, 0, 10 * quarter, 4, 20), 50_000)
    assert len(left._speeds) < MOST_WINDOW_S + 2
    assert len(left._ends) < 4 * STEADY_S + 2
    assert left.seconds(10_000) == pytest.approx(2500, rel=0.02)
