"""Whose conversions run: a few at a time, of the owners that used least time lately.

Any conversion may begin in any seat, for a first turn of TURN_S. After it one that may keep its seat goes on,
and another is ended, to begin again when it may: of the AT_ONCE seats LASTING are kept. So a seat comes free
every TURN_S however costly the tables of others are, and what is lost is one turn of each costly table.
"""

from __future__ import annotations

import math
import threading
import time

AT_ONCE = 4
LASTING = 3
TURN_S = 2.0  # of processor time: reads 50,000 short rows of CSV, or some thousands of XLSX
LONGEST_TURN_S = 10.0  # on a machine that computes much else
HALF_LIFE_S = 60.0  # of the time that an owner has used
FORGOTTEN_S = 0.01


class Seats:
    """Thread-safe. An owner has one conversion in its first turn, and one that keeps its seat."""

    def __init__(self, most: int = AT_ONCE, lasting: int = LASTING, turn_s: float = LONGEST_TURN_S) -> None:
        self._most, self._lasting, self._turn_s = most, lasting, turn_s
        self._lock = threading.Lock()
        self._waiting: list[Seat] = []
        self._taken: list[Seat] = []
        self._due = math.inf  # when the next turn ends, at the latest
        self._used: dict[str, tuple[float, float]] = {}  # of an owner: seconds, and when they were so many

    def enter(self, owner: str) -> Seat:
        """Wait for a seat, with held()."""
        with self._lock:
            seat = Seat(self, owner)
            self._waiting.append(seat)
            self._settle(time.monotonic())
            return seat

    def held(self, seat: Seat, worked_s: float) -> bool:
        with self._lock:
            now = time.monotonic()
            if worked_s >= TURN_S and not seat.stays:
                seat.until = now
                self._due = now
            if now >= self._due:
                self._settle(now)
            return seat.since is not None

    def leave(self, seat: Seat) -> None:
        with self._lock:
            now = time.monotonic()
            if seat in self._taken:
                self._take_back(seat, now)
            self._waiting.remove(seat)
            lately = {owner: self._lately(owner, now) for owner in self._used}
            self._used = {owner: (used, now) for owner, used in lately.items() if used > FORGOTTEN_S}
            self._settle(now)

    def _settle(self, now: float) -> None:
        for seat in [*self._taken]:
            if not seat.stays and seat.until <= now:
                seat.costly = True
                seat.stays = self._may_stay(seat.owner)
                if not seat.stays:
                    self._take_back(seat, now)
        used = {seat.owner: self._lately(seat.owner, now) for seat in self._waiting}
        for seat in self._taken:
            used[seat.owner] = used.get(seat.owner, 0.0) + seat.held_s(now)
        for seat in sorted(self._waiting, key=lambda one: used[one.owner]):
            if self._may_begin(seat):
                seat.since, seat.until, seat.stays = now, now + self._turn_s, seat.costly
                self._waiting.remove(seat)
                self._taken.append(seat)
        self._due = min((seat.until for seat in self._taken if not seat.stays), default=math.inf)

    def _may_begin(self, seat: Seat) -> bool:
        if len(self._taken) >= self._most:
            return False
        if seat.costly:
            return self._may_stay(seat.owner)
        return not any(other.owner == seat.owner and not other.stays for other in self._taken)

    def _may_stay(self, owner: str) -> bool:
        staying = [seat.owner for seat in self._taken if seat.stays]
        return len(staying) < self._lasting and owner not in staying

    def _take_back(self, seat: Seat, now: float) -> None:
        self._used[seat.owner] = (self._lately(seat.owner, now) + seat.held_s(now), now)
        seat.since, seat.until, seat.stays = None, math.inf, False
        self._taken.remove(seat)
        self._waiting.append(seat)

    def _lately(self, owner: str, now: float) -> float:
        used, then = self._used.get(owner, (0.0, now))
        return used * math.exp2((then - now) / HALF_LIFE_S)


class Seat:
    """Of one conversion; leave() in any case.

    since: when it was last given, None while it is waited for. until: when that turn ends. costly: a turn was
    not enough. stays: for as long as the conversion takes.
    """

    def __init__(self, seats: Seats, owner: str) -> None:
        self.owner = owner
        self.since: float | None = None
        self.until = math.inf
        self.costly = self.stays = False
        self._seats = seats

    def held(self, worked_s: float = 0.0) -> bool:
        """Whether the conversion may run now. To be asked again and again, also while it runs.

        worked_s: of processor time, since it began.
        """
        return self._seats.held(self, worked_s)

    def held_s(self, now: float) -> float:
        return 0.0 if self.since is None else now - self.since

    def leave(self) -> None:
        self._seats.leave(self)
