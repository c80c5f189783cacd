"""Who is lost, from what was seen at each look."""

from __future__ import annotations

import pytest

from tasks.recovery.lost_holders import Look, LostHolders, lost_after_s
from tests.support.servers import RedisServer, fast_settings

LOST_AFTER_S, SETTLING_S, STEP_S = 3.0, 10.0, 0.5
OLD_S = 3600.0
LIVES = frozenset({"w"})
GONE: frozenset[str] = frozenset()


class Watched:
    """One holder, looked at twice a second."""

    def __init__(self) -> None:
        self.holders = LostHolders(LOST_AFTER_S, SETTLING_S)
        self.now_s, self.beats, self.server, self.up_s = 100.0, 1, "one", OLD_S

    def look(self, connected: frozenset[str]) -> list[str]:
        look = Look(self.now_s, self.server, self.up_s, {"w": self.beats}, connected)
        lost = self.holders.update(look)
        self.now_s += STEP_S
        self.up_s += STEP_S
        return [one.name for one in lost]

    def looks_until_lost(self, most: int = 60) -> int | None:
        return next((n for n in range(1, most) if self.look(GONE)), None)


@pytest.fixture
def watched() -> Watched:
    return Watched()


FIRST_LOST = round(LOST_AFTER_S / STEP_S) + 1  # looks, the first of which missed it


def test_a_holder_with_a_connection_is_never_lost(watched: Watched) -> None:
    assert not any(watched.look(LIVES) for _ in range(60))


def test_one_without_is_lost_in_time_and_again_until_it_is_forgotten(watched: Watched) -> None:
    watched.look(LIVES)
    assert watched.looks_until_lost() == FIRST_LOST
    assert watched.look(GONE) == ["w"]


def test_one_that_was_never_seen_with_a_connection_is_lost_as_well(watched: Watched) -> None:
    """It was killed right after its first beat, or before this process began to look."""
    assert watched.looks_until_lost() == FIRST_LOST


def test_a_connection_in_between_begins_the_time_again(watched: Watched) -> None:
    for _ in range(FIRST_LOST - 1):
        assert watched.look(GONE) == []
    watched.look(LIVES)
    assert watched.looks_until_lost() == FIRST_LOST


def test_a_beat_in_between_begins_the_time_again(watched: Watched) -> None:
    """As of a worker whose connections are not listed, whatever the reason."""
    for _ in range(60):
        watched.beats += 1
        assert watched.look(GONE) == []
    assert watched.looks_until_lost() == FIRST_LOST - 1  # the last of those missed it already


def test_nobody_is_missed_on_a_server_that_has_just_started(watched: Watched) -> None:
    watched.up_s = 1.0
    settling = round((SETTLING_S - watched.up_s) / STEP_S)
    assert watched.looks_until_lost() == settling + FIRST_LOST


def test_nobody_is_missed_on_a_server_that_has_just_become_the_master(watched: Watched) -> None:
    for _ in range(FIRST_LOST - 1):
        watched.look(GONE)
    watched.server = "two"
    settling = round(SETTLING_S / STEP_S)
    assert watched.looks_until_lost() == settling + FIRST_LOST


def test_after_a_pause_of_the_looks_the_time_begins_again(watched: Watched) -> None:
    for _ in range(FIRST_LOST - 1):
        watched.look(GONE)
    watched.now_s += LOST_AFTER_S
    assert watched.looks_until_lost() == FIRST_LOST


def test_what_is_reported_has_the_beats_that_it_had_when_it_was_missed_first(watched: Watched) -> None:
    watched.beats = 7
    for _ in range(FIRST_LOST - 1):
        watched.look(GONE)
    look = Look(watched.now_s, "one", OLD_S, {"w": 7, "x": 1}, frozenset({"x"}))
    assert [(one.name, one.beats) for one in watched.holders.update(look)] == [("w", 7)]


def test_the_time_follows_from_the_lease(redis_server: RedisServer) -> None:
    leases = {10_000: 3.0, 60_000: 18.0, 2000: 1.0}
    found = {ms: lost_after_s(fast_settings(redis_server, lease_ms=ms)) for ms in leases}
    assert found == pytest.approx(leases)
