"""Who converts next, and for how long."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tables.conversion import seats as module
from tables.conversion.seats import FORGOTTEN_S, Seats

LONG_S, TURN_S = 1000.0, 0.05
LIMIT_S = 20.0


def wait_until(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.005)


def test_seats_are_few_and_one_for_each() -> None:
    seats = Seats(2, 1, LONG_S)
    first, again, other, last = (seats.enter(owner) for owner in ("a", "a", "b", "c"))
    assert [one.held() for one in (first, again, other, last)] == [True, False, True, False]
    time.sleep(2 * FORGOTTEN_S)
    first.leave()
    assert [one.held() for one in (again, other, last)] == [False, True, True]
    last.leave()
    assert again.held()


def test_one_seat_changes_hands_however_long_others_stay() -> None:
    seats = Seats(3, 2, TURN_S)
    staying = [seats.enter(owner) for owner in ("a", "b")]
    wait_until(lambda: all(one.held() and one.stays for one in staying))
    for number in range(3):
        costly = seats.enter(f"costly{number}")
        assert costly.held()
        small = seats.enter(f"small{number}")
        wait_until(small.held)
        assert not costly.held()
        small.leave()
    time.sleep(2 * TURN_S)
    assert all(one.held() for one in staying)


def test_what_lost_its_seat_has_the_next_that_it_may_keep() -> None:
    seats = Seats(2, 1, TURN_S)
    stays = seats.enter("a")
    wait_until(lambda: stays.held() and stays.stays)
    costly = seats.enter("b")
    wait_until(lambda: not costly.held())
    stays.leave()
    assert costly.held()
    time.sleep(2 * TURN_S)
    assert costly.held()


def test_an_owner_keeps_one() -> None:
    seats = Seats(3, 2, TURN_S)
    first, second = seats.enter("a"), seats.enter("a")
    wait_until(lambda: first.held() and first.stays)
    wait_until(second.held)
    wait_until(lambda: not second.held())
    small = seats.enter("a")
    assert small.held(), "its costly ones keep its small ones from nothing"


def test_the_owner_that_used_least_time_is_next() -> None:
    seats = Seats(1, 1, LONG_S)
    for owner, used_s in (("a", 0.2), ("b", 0.05)):
        one = seats.enter(owner)
        assert one.held()
        time.sleep(used_s)
        one.leave()
    running = seats.enter("x")
    waiting = [seats.enter(owner) for owner in ("a", "b", "new")]
    running.leave()
    for position in (2, 1, 0):
        assert [one.held() for one in waiting] == [index == position for index in range(len(waiting))]
        waiting.pop(position).leave()


def test_what_was_used_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HALF_LIFE_S", 0.01)
    seats = Seats(1, 1, LONG_S)
    one = seats.enter("a")
    time.sleep(0.05)
    one.leave()
    assert seats._used
    time.sleep(0.1)
    seats.enter("b").leave()
    assert not seats._used
