"""What a person sees while a run goes on."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from cli.views import progress
from cli.views.progress import Display
from cli.views.time_left import Progress


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


def test_a_terminal_gets_a_bar_with_what_runs_and_the_speed(clock: Clock) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with Display(console, total=50, before=Progress(10, 1, 700), enabled=True) as display:
        for second in range(1, 31):
            clock.now = 100.0 + second
            display.update(Progress(10 + second, 3, 700 + 40 * second, 4, 60), None)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown(console))
    assert "━" in plain
    assert re.search(r"40/50  4 running  1,260 tokens, 40\.0/s  about \d\.\d s left  3 failed", plain)


def test_elsewhere_a_line_comes_every_few_seconds(clock: Clock) -> None:
    """Of tokens before the first request has ended; and the speed is that of the last seconds."""
    console = Console(file=io.StringIO(), width=80)
    with Display(console, total=40, before=Progress(0, 0, 0), enabled=True) as display:
        for second in range(1, 11):
            clock.now = 100.0 + second
            display.update(Progress(0, 0, 0, 16, 20 * second), None)
        for second in range(11, 16):
            clock.now = 100.0 + second
            display.update(Progress(0, 0, 0, 16, 200), "connection refused")
        clock.now += 10
        display.update(Progress(1, 0, 20, 15, 180), None)
    assert shown(console).splitlines() == [
        "0/40  16 running  100 tokens, 20.0/s",
        "0/40  16 running  200 tokens, 20.0/s",
        "0/40  16 running  200 tokens, 10.9/s  waiting for the gateway (connection refused)",
        "1/40  15 running  200 tokens, 0.0/s",
    ]


def test_tokens_that_were_lost_are_not_taken_back(clock: Clock) -> None:
    console = Console(file=io.StringIO(), width=80)
    with Display(console, total=40, before=Progress(0, 0, 0), enabled=True) as display:
        for second, running in ((2, 100), (4, 10), (6, 60), (12, 140)):
            clock.now = 100.0 + second
            display.update(Progress(0, 0, 0, 4, running), None)
    assert shown(console).splitlines() == [
        "0/40  4 running  100 tokens, 16.7/s",
        "0/40  4 running  140 tokens, 11.7/s",
    ]


def test_before_a_token_has_come_there_is_no_speed(clock: Clock) -> None:
    console = Console(file=io.StringIO(), width=80)
    with Display(console, total=40, before=Progress(2, 2, 0), enabled=True) as display:
        clock.now += 6
        display.update(Progress(2, 2, 0), None)
        clock.now += 6
        display.update(Progress(2, 2, 0, 16, 0), None)
    assert shown(console).splitlines() == ["2/40  starting  2 failed", "2/40  16 running  2 failed"]


def test_no_progress_says_nothing(clock: Clock) -> None:
    for terminal in (False, True):
        console = Console(file=io.StringIO(), force_terminal=terminal)
        with Display(console, total=4, before=Progress(0, 0, 0), enabled=False) as display:
            clock.now += 60
            display.update(Progress(1, 0, 10), None)
        assert shown(console) == ""
