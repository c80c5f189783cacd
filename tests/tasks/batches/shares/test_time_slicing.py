"""Owners take turns: what one has queued delays another's work by a slice, and no owner has all threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tasks.batches.time_slicing import UNDER_WAY, Steps, TimeSlicer
from tests.support.workers import wait_until

WAIT_S = 20.0


def attempt(_what: str, work: Callable[[], bool]) -> bool | None:
    try:
        return work()
    except ZeroDivisionError:
        return None


@pytest.fixture
def slicer() -> Iterator[TimeSlicer]:
    slicer = TimeSlicer(attempt)
    yield slicer
    slicer.stop()


def endless(begun: list[str], closed: list[str], name: str) -> Steps:
    begun.append(name)
    try:
        while True:
            time.sleep(0.001)
            yield
    finally:
        closed.append(name)


def once(done: threading.Event) -> Steps:
    done.set()
    yield


def test_work_of_another_owner_does_not_wait_for_what_one_has_queued(slicer: TimeSlicer) -> None:
    begun: list[str] = []
    for n in range(50):
        slicer.begin(f"a{n}", "a", endless(begun, [], f"a{n}"))
    wait_until(lambda: len(begun) == UNDER_WAY)
    for n in range(20):
        done = threading.Event()
        slicer.begin(f"b{n}", "b", once(done))
        assert done.wait(WAIT_S)
    assert len(begun) == UNDER_WAY, "no more of one owner's work takes memory"


def test_a_step_that_hangs_leaves_a_thread_to_others(slicer: TimeSlicer) -> None:
    go_on = threading.Event()

    def hangs() -> Steps:
        go_on.wait(WAIT_S)
        yield

    for n in range(10):
        slicer.begin(f"a{n}", "a", hangs())
    done = threading.Event()
    slicer.begin("b", "b", once(done))
    try:
        assert done.wait(WAIT_S / 2)
    finally:
        go_on.set()


@pytest.mark.slow
def test_owners_have_equal_shares_of_time(slicer: TimeSlicer) -> None:
    """However long the steps of one of them take."""
    used = {"a": 0, "b": 0, "c": 0}

    def busy(owner: str, ms: int) -> Steps:
        while True:
            time.sleep(ms / 1000)
            used[owner] += ms
            yield

    for owner, ms in (("a", 1), ("b", 120), ("c", 10)):
        slicer.begin(owner, owner, busy(owner, ms))
    wait_until(lambda: sum(used.values()) > 4000)
    assert max(used.values()) < 3 * min(used.values()), used


def test_one_owners_work_takes_turns_too(slicer: TimeSlicer) -> None:
    """As much of it as may be under way."""
    done = threading.Event()
    slicer.begin("long", "a", endless([], [], "long"))
    slicer.begin("short", "a", once(done))
    assert done.wait(WAIT_S)


def test_work_is_queued_once_until_it_has_ended(slicer: TimeSlicer) -> None:
    begun: list[str] = []
    go_on = threading.Event()

    def work() -> Steps:
        begun.append("")
        yield
        go_on.wait(WAIT_S)

    for _ in range(3):
        slicer.begin("a", "a", work())
    go_on.set()
    wait_until(lambda: len(begun) == 1)
    again = threading.Event()
    wait_until(lambda: slicer.begin("a", "a", once(again)) or again.is_set())
    assert begun == [""]


def test_an_error_ends_one_piece_of_work(slicer: TimeSlicer) -> None:
    def fails() -> Steps:
        yield
        raise ZeroDivisionError

    slicer.begin("a", "a", fails())
    done = threading.Event()
    wait_until(lambda: slicer.begin("a", "a", once(done)) or done.is_set())


def test_stopping_closes_what_is_under_way_and_takes_no_more() -> None:
    slicer = TimeSlicer(attempt)
    begun: list[str] = []
    closed: list[str] = []
    for name in ("a", "b", "c", "d", "e"):
        slicer.begin(name, name[0], endless(begun, closed, name))
    wait_until(lambda: len(begun) == 5)
    slicer.stop()
    wait_until(lambda: sorted(closed) == sorted(begun))
    slicer.begin("late", "late", endless(begun, closed, "late"))
    wait_until(lambda: not any(t.is_alive() for t in slicer._threads))
    assert "late" not in begun
