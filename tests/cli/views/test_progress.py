"""What a person sees while a run goes on."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from cli.views import progress
from cli.views.progress import Display


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
        clock.now += 10
        display.update(done=20, failed=2, tokens=400, last_error=None)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown(console))
    assert "━" in plain
    assert "20/50  40.0 tokens/s  30 s left  2 failed" in plain


def test_elsewhere_a_line_comes_every_few_seconds(clock: Clock) -> None:
    console = Console(file=io.StringIO(), width=80)
    with Display(console, total=4, done=0, enabled=True) as display:
        for second in range(1, 11):
            clock.now = 100.0 + second
            display.update(done=second // 5, failed=0, tokens=10 * second, last_error=None)
        clock.now += 5
        display.update(done=2, failed=0, tokens=100, last_error="connection refused")
    assert shown(console).splitlines() == [
        "1/4  10.0 tokens/s  15 s left",
        "2/4  10.0 tokens/s  10 s left",
        "2/4  6.7 tokens/s  15 s left  waiting for the gateway (connection refused)",
    ]


def test_no_progress_says_nothing(clock: Clock) -> None:
    for terminal in (False, True):
        console = Console(file=io.StringIO(), force_terminal=terminal)
        with Display(console, total=4, done=0, enabled=False) as display:
            clock.now += 60
            display.update(done=1, failed=0, tokens=10, last_error=None)
        assert shown(console) == ""
