"""Who is in a room with whom."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tasks.worker.exclusive_gate import Room
from tests.support.workers import wait_until


def test_one_alone_waits_for_those_inside_and_keeps_out_those_that_come_later() -> None:
    room, inside, told = Room(), [], []  # type: tuple[Room, list[str], list[list[str]]]
    leave = {name: threading.Event() for name in ("first", "second", "alone", "later")}

    def visit(name: str) -> None:
        with room.entered(alone=name == "alone"):
            inside.append(name)
            told.append(sorted(inside))
            leave[name].wait(20)
            inside.remove(name)

    with ThreadPoolExecutor() as pool:
        pool.submit(visit, "first")
        pool.submit(visit, "second")
        wait_until(lambda: len(inside) == 2)
        pool.submit(visit, "alone")
        wait_until(lambda: room._lonely == 1)
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
    room = Room()
    for alone in (True, False, True):
        try:
            with room.entered(alone):
                raise ValueError
        except ValueError:
            pass


@pytest.mark.parametrize("how", ["told", "time"])
def test_who_gives_up_is_not_inside_and_keeps_nobody_out(how: str) -> None:
    room, given_up = Room(), threading.Event()

    def visit() -> bool:
        with room.entered(True, given_up.is_set, 0.0 if how == "time" else None) as inside:
            return inside

    with ThreadPoolExecutor() as pool, room.entered(alone=False) as first:
        waiting = pool.submit(visit)
        if how == "told":
            wait_until(lambda: room._lonely == 1)
            given_up.set()
            room.look_again()
        assert waiting.result(10) is False
        with room.entered(alone=False) as later:
            assert first
            assert later
    with room.entered(alone=True, given_up=given_up.is_set) as alone:
        assert alone, "there is room"
