"""Who is lost, from what was heard and seen at each look."""

from __future__ import annotations

import pytest

from tasks.recovery.lost_holders import LEASES, Look, LostHolders, lost_after_s
from tests.support.servers import RedisServer, fast_settings

LOST_AFTER_S, LEASE_S, STEP_S = 3.0, 10.0, 0.5
OLD_S = 3600.0
LIVES = frozenset({"w"})
GONE: frozenset[str] = frozenset()
FIRST_LOST = round(LOST_AFTER_S / STEP_S) + 1  # looks, the first of which saw its last beat
SETTLING = round(LEASE_S / STEP_S)


class Watched:
    """One holder, looked at twice a second."""

    def __init__(self) -> None:
        self.holders = LostHolders(LOST_AFTER_S, LEASE_S)
        self.now_s, self.beats, self.server, self.up_s = 100.0, 1, "one", OLD_S
        self.asked = 0  # how often for its connections

    def look(self, connected: frozenset[str] = GONE) -> list[str]:
        asked = self.holders.hear(Look(self.now_s, self.server, self.up_s, {"w": self.beats}))
        lost = self.holders.see(asked, connected)
        self.asked += len(asked)
        self.now_s += STEP_S
        self.up_s += STEP_S
        return [one.name for one in lost]

    def looks_until_lost(self, most: int = 60) -> int | None:
        return next((n for n in range(1, most) if self.look()), None)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_one_that_beats_is_never_lost_and_never_asked_for(watched: Watched) -> None:
    """Whatever Redis lists; and one that misses a beat is late."""
    for number in range(60):
        watched.beats += number % 2
        assert watched.look() == []
    assert watched.asked == 0


def test_one_with_a_connection_is_never_lost(watched: Watched) -> None:
    """As one that is held up; when its leases have run out, nobody asks any more."""
    assert not any(watched.look(LIVES) for _ in range(200))
    assert watched.asked == (LEASES * LEASE_S - LOST_AFTER_S / 2) / STEP_S


def test_a_silent_one_without_a_connection_is_lost_in_time(watched: Watched) -> None:
    watched.look(LIVES)
    watched.beats += 1
    assert watched.looks_until_lost() == FIRST_LOST
    assert watched.look() == ["w"], "again, until its beats are forgotten"


def test_one_that_was_never_seen_with_a_connection_is_lost_as_well(watched: Watched) -> None:
    """It was killed right after its first beat, or before this process began to look."""
    assert watched.looks_until_lost() == FIRST_LOST


def test_a_connection_begins_the_time_without_one_again(watched: Watched) -> None:
    for _ in range(FIRST_LOST):
        watched.look(LIVES)
    assert watched.looks_until_lost() == 1 + LOST_AFTER_S / 3 / STEP_S


def test_a_beat_begins_the_time_again(watched: Watched) -> None:
    for _ in range(FIRST_LOST - 1):
        assert watched.look() == []
    watched.beats += 1
    assert watched.looks_until_lost() == FIRST_LOST


def test_nobody_is_missed_on_a_server_that_has_just_started(watched: Watched) -> None:
    watched.up_s = 1.0
    assert watched.looks_until_lost() == SETTLING - 2 + FIRST_LOST - 1


def test_nobody_is_missed_on_a_server_that_has_just_become_the_master(watched: Watched) -> None:
    for _ in range(FIRST_LOST - 1):
        watched.look()
    watched.server = "two"
    assert watched.looks_until_lost() == SETTLING + FIRST_LOST - 1


def test_after_a_pause_of_the_looks_the_time_begins_again(watched: Watched) -> None:
    for _ in range(FIRST_LOST - 1):
        watched.look()
    watched.now_s += LOST_AFTER_S
    assert watched.looks_until_lost() == FIRST_LOST


def test_what_is_reported_has_the_beats_that_it_had_last(watched: Watched) -> None:
    watched.beats = 7
    for _ in range(FIRST_LOST - 1):
        watched.look()
    asked = watched.holders.hear(Look(watched.now_s, "one", OLD_S, {"w": 7, "x": 1}))
    assert [(one.name, one.beats) for one in watched.holders.see(asked, frozenset({"x"}))] == [("w", 7)]


def test_the_time_follows_from_the_lease(redis_server: RedisServer) -> None:
    leases = {10_000: 3.0, 60_000: 18.0, 2000: 1.0}
    found = {ms: lost_after_s(fast_settings(redis_server, lease_ms=ms)) for ms in leases}
    assert found == pytest.approx(leases)
