"""The progress of long work where there is no terminal: a line now and then."""

from __future__ import annotations

import pytest
from rich.console import Console

from tests.training.conftest import said
from training.base import progress
from training.base.progress import Display


def test_a_line_tells_how_far_it_is_how_fast_and_how_long(
    quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with Display(quiet, "tokens", 1000) as display:
        for done in (0, 10, 20, 120, 130):
            display.update(done, "loss 2.5")
            now += progress.PLAIN_EVERY_S / 2
    assert said(quiet).splitlines() == [
        "20/1000 tokens, 1 a second, loss 2.5, 16 min left",
        "130/1000 tokens, 3 a second, loss 2.5, 4 min left",
    ], "after 20 s and 40 s, however often it is told"
