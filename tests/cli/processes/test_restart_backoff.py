"""When a service is started again, at times that a test sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from cli.processes import restart_backoff as module
from cli.processes.restart_backoff import HEALTHY_S, PAUSE_MAX_S, START_LIMIT, Restart, Restarts


class Clock:
    """In place of the module time."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + 1e9


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def seen() -> list[Sequence[Restart]]:
    return []


@pytest.fixture
def restarts(clock: Clock, seen: list[Sequence[Restart]]) -> Restarts:  # noqa: ARG001  by its clock
    restarts = Restarts(seen.append)
    restarts.added("worker")
    restarts.started("worker")
    return restarts


def test_pauses_double_up_to_the_longest(restarts: Restarts, clock: Clock) -> None:
    pauses = []
    for _ in range(40):
        pauses.append(restarts.ended("worker", "exit code 1").pause)
        clock.now += pauses[-1]
        assert restarts.pause("worker") == 0
        restarts.started("worker")
        assert restarts.pause("worker") is None
    assert pauses[:9] == [0.5, 1, 2, 4, 8, 16, 32, PAUSE_MAX_S, PAUSE_MAX_S]
    assert set(pauses[9:]) == {PAUSE_MAX_S}


def test_health_makes_up_for_ends_and_only_health_does(
    restarts: Restarts, clock: Clock, seen: list[Sequence[Restart]]
) -> None:
    for end in range(4):
        assert restarts.ended("worker", "exit code 1").ends == end + 1
        clock.now += HEALTHY_S  # a pause, however long, is no health
        restarts.forget_healthy()
        restarts.started("worker")
        clock.now += HEALTHY_S - 1
        restarts.forget_healthy()
        assert [one.ends for one in seen[-1]] == [end + 1]
    clock.now += 1
    restarts.forget_healthy()
    assert seen[-1] == ()
    assert restarts.ended("worker", "exit code 1").pause == 0.5


def test_each_change_is_told(restarts: Restarts, clock: Clock, seen: list[Sequence[Restart]]) -> None:
    first = restarts.ended("worker", "killed by SIGKILL")
    assert seen == [(first,)]
    assert first == Restart("worker", 1, clock.time(), "killed by SIGKILL", 0.5, clock.time() + 0.5)
    clock.now += 0.5
    restarts.started("worker")
    assert seen[1:] == [(dataclasses.replace(first, next_start=None),)]
    restarts.forget("worker")
    assert seen[2:] == [()]


def test_a_start_is_hopeless_only_for_what_was_never_ready(restarts: Restarts) -> None:
    for _ in range(START_LIMIT):
        assert not restarts.hopeless("worker")
        restarts.ended("worker", "exit code 1")
    assert restarts.hopeless("worker")
    restarts.added("worker")
    restarts.ready("worker")
    for _ in range(3 * START_LIMIT):
        restarts.ended("worker", "exit code 1")
    assert not restarts.hopeless("worker")


def test_ends_before_it_is_ready_are_counted_however_long_a_start_takes(
    restarts: Restarts, clock: Clock
) -> None:
    for _ in range(START_LIMIT):
        clock.now += 10 * HEALTHY_S
        restarts.forget_healthy()
        restarts.ended("worker", "killed by SIGKILL")
        restarts.started("worker")
    assert restarts.hopeless("worker")


def test_it_is_said_in_words(restarts: Restarts, clock: Clock) -> None:
    once = restarts.ended("worker", "exit code 1")
    assert once.announcement() == "worker ended (exit code 1), restarting it in 0.5 s"
    assert once.status_line(clock.time()).endswith("last: exit code 1; it rests, and is started again in 0 s")
    restarts.ended("worker", "exit code 1")
    again = restarts.ended("worker", "killed by SIGKILL")
    since = module.clock(again.since)
    assert (
        again.announcement()
        == f"worker ended (killed by SIGKILL), restarting it in 2 s after 3 ends since {since}"
    )
    assert again.status_line(clock.time()) == (
        f"worker ended 3 times since {since}, last: killed by SIGKILL; it rests, and is started again in 2 s"
    )
    running = dataclasses.replace(again, next_start=None)
    assert running.status_line(0.0).endswith("; it has been started again")
