"""What is done again and again."""

from __future__ import annotations

import logging
import threading

import pytest

from tasks.base.periodic import Periodic

SOON_S = 30.0


def test_it_comes_again_after_an_error_until_it_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    calls, three = 0, threading.Event()

    def call() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ValueError("the first fails")
        if calls == 3:
            three.set()

    periodic = Periodic("count", 0.01, call)
    with caplog.at_level(logging.ERROR):
        periodic.start()
        assert three.wait(SOON_S)
    assert "count failed" in caplog.text
    periodic.stop()
    after = calls
    threading.Event().wait(0.1)
    assert calls == after


def test_stop_waits_for_the_call_that_is_under_way() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        go_on.wait(SOON_S)
        ended.set()

    periodic = Periodic("slow", 60.0, call)
    periodic.start()
    assert begun.wait(SOON_S)
    threading.Timer(0.1, go_on.set).start()
    periodic.stop()
    assert ended.is_set()


def test_stop_before_start() -> None:
    Periodic("never", 60.0, lambda: None).stop()
