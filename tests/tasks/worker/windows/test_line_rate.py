"""Lines a second, counted while there are lines to run."""

from __future__ import annotations

from tasks.worker.windows.line_rate import LineRate


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_rate_is_that_of_the_time_with_work() -> None:
    clock = Clock()
    rate = LineRate(slots=4, clock=clock)
    rate.begin()
    clock.now += 1
    rate.count(3)
    assert rate.per_s == 0, "too few to say"
    rate.pause()
    clock.now += 1000
    rate.begin()
    clock.now += 1
    rate.count(1)
    assert rate.per_s == 2
    clock.now += 1
    rate.count(4)
    assert rate.per_s == 3, "half of what was, half of what is"
    clock.now += 40
    assert rate.per_s == 0.1, "no more than four can end now"
    rate.count(4)
    assert rate.per_s == 0.1, "slower lines are believed at once"


def test_many_lines_tell_at_once() -> None:
    clock = Clock()
    rate = LineRate(slots=4, clock=clock)
    rate.begin()
    clock.now += 0.01
    rate.count(15)
    assert rate.per_s == 0
    rate.count(1)
    assert round(rate.per_s) == 1600
