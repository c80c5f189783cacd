"""Who is in a room with whom."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tasks.worker.exclusive_gate import ExclusiveGate
from tests.support.workers import wait_until


def test_one_alone_waits_for_those_inside_and_keeps_out_those_that_come_later() -> None:
    gate, inside, told = ExclusiveGate(), [], []  # type: tuple[ExclusiveGate, list[str], list[list[str]]]
    leave = {name: threading.Event() for name in ("first", "second", "alone", "later")}

    def visit(name: str) -> None:
        with gate.acquire(exclusive=name == "alone"):
            inside.append(name)
            told.append(sorted(inside))
            leave[name].wait(20)
            inside.remove(name)

    with ThreadPoolExecutor() as pool:
        pool.submit(visit, "first")
        pool.submit(visit, "second")
        wait_until(lambda: len(inside) == 2)
        pool.submit(visit, "alone")
        wait_until(lambda: gate._exclusive == 1)
        pool.submit(visit, "later")
        leave["first"].set()
        wait_until(lambda: inside == ["second"])
        leave["second"].set()
        wait_until(lambda: inside == ["alone"])
        leave["alone"].set()
        wait_until(lambda: inside == ["later"])
        leave["later"].set()
    assert told[2:] == [["alone"], ["later"]]


def test_an_error_inside_leaves_the_room() -> None:
    gate = ExclusiveGate()
    for alone in (True, False, True):
        try:
            with gate.acquire(alone):
                raise ValueError
        except ValueError:
            pass


@pytest.mark.parametrize("how", ["told", "time"])
def test_who_gives_up_is_not_inside_and_keeps_nobody_out(how: str) -> None:
    gate, given_up = ExclusiveGate(), threading.Event()

    def visit() -> bool:
        with gate.acquire(True, given_up.is_set, 0.0 if how == "time" else None) as inside:
            return inside

    with ThreadPoolExecutor() as pool, gate.acquire(exclusive=False) as first:
        waiting = pool.submit(visit)
        if how == "told":
            wait_until(lambda: gate._exclusive == 1)
            given_up.set()
            gate.recheck()
        assert waiting.result(10) is False
        with gate.acquire(exclusive=False) as later:
            assert first
            assert later
    with gate.acquire(exclusive=True, given_up=given_up.is_set) as alone:
        assert alone, "there is room"


def test_one_that_does_not_wait_enters_unless_another_wants_the_gate_alone() -> None:
    gate = ExclusiveGate()
    assert gate.try_enter(2)
    alone = threading.Event()

    def exclusive() -> None:
        with gate.acquire(exclusive=True) as inside:
            assert inside
            alone.set()

    thread = threading.Thread(target=exclusive)
    thread.start()
    wait_until(lambda: not gate.try_enter(0))
    assert not gate.try_enter(1)
    gate.leave(1)
    assert not alone.wait(0.05), "one is still inside"
    gate.leave(1)
    assert alone.wait(5)
    thread.join()
    assert gate.try_enter(1)
