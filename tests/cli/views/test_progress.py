"""What a person sees while a run goes on."""

from __future__ import annotations

import io
import re
from itertools import pairwise

import pytest
from rich.console import Console

from cli.views import progress
from cli.views.progress import LEAST_ENDS, LEAST_S, Display, TimeLeft


class Clock:
    """Time as the test says."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_gets_a_bar_with_speed_and_time_left(clock: Clock) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with Display(console, total=50, done=10, enabled=True) as display:
        for second in range(1, 11):
            clock.now = 100.0 + second
            display.update(done=10 + second, failed=2, tokens=40 * second, last_error=None)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown(console))
    assert "━" in plain
    assert "20/50  40.0 tokens/s  30 s left  2 failed" in plain


def test_elsewhere_a_line_comes_every_few_seconds(clock: Clock) -> None:
    console = Console(file=io.StringIO(), width=80)
    with Display(console, total=40, done=0, enabled=True) as display:
        for second in range(1, 11):
            clock.now = 100.0 + second
            display.update(done=second, failed=0, tokens=10 * second, last_error=None)
        clock.now += 5
        display.update(done=10, failed=0, tokens=100, last_error="connection refused")
    assert shown(console).splitlines() == [
        "5/40  10.0 tokens/s",
        "10/40  10.0 tokens/s  30 s left",
        "10/40  6.7 tokens/s  53 s left  waiting for the gateway (connection refused)",
    ]


def test_no_progress_says_nothing(clock: Clock) -> None:
    for terminal in (False, True):
        console = Console(file=io.StringIO(), force_terminal=terminal)
        with Display(console, total=4, done=0, enabled=False) as display:
            clock.now += 60
            display.update(done=1, failed=0, tokens=10, last_error=None)
        assert shown(console) == ""


BURSTS = {  # when so many of the requests have ended, in seconds
    "one by one": [8.0 + n for n in range(100)],
    "slow first answers": [20.0] * 4 + [30.0] * 4 + [30.0 + n for n in range(92)],
    "by the batch": [12.0 + 4 * (n // 8) for n in range(96)],
    "long ones": [60.0 + 20 * n for n in range(40)],
    "all at once": [3.0] * 10 + [3.0 + n / 30 for n in range(300)],
}


@pytest.mark.parametrize("name", BURSTS)
def test_the_time_left_is_right_when_it_is_told_and_not_told_before(name: str) -> None:
    ends = BURSTS[name]
    left, told = TimeLeft(), 0
    slack = 1 + max(after - before for before, after in pairwise(ends))  # no estimate can be finer
    for quarter in range(int(ends[-1] * 4)):
        now = quarter / 4
        ended = sum(end <= now for end in ends)
        left.note(now, ended)
        if (estimate := left.seconds(now, len(ends) - ended)) is not None:
            told += 1
            actual = ends[-1] - now
            assert actual / 2 - slack < estimate < actual * 2 + slack, f"at {now} s"
        elif ended:
            assert now < ends[2 * LEAST_ENDS] + LEAST_S + slack, "it is told as soon as it can be known"
    assert told > 10


def test_what_is_remembered_is_bounded() -> None:
    left = TimeLeft()
    for quarter in range(40_000):
        left.note(quarter / 4, quarter)
    assert len(left._points) < 130
    assert left.seconds(10_000, 400) == pytest.approx(100, rel=0.02)
