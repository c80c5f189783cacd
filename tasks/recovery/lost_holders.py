"""Who is lost of those that hold leases, from what was seen of their connections at each look.

A killed process has no connections from the next moment on, while its leases last for seconds. But a worker
that lives may also be without one for a while: Redis has restarted, another server has become the master, the
network was away. So a holder is lost only after several beats without a connection and without a beat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tasks.base.settings import Settings

MISSED_BEATS = 3
LEAST_S = 1.0  # with a short lease, too: time to connect again
LOOKS = 6  # in the time after which a missing holder is lost


@dataclass(frozen=True, slots=True)
class Look:
    """What Redis said. at_s: on this process's monotonic clock. server: which process Redis is; up_s: for how
    long. beats: of each holder that ever beat, how often; connected: names of connections.
    """

    at_s: float
    server: str
    up_s: float
    beats: Mapping[str, int]
    connected: frozenset[str]


@dataclass(frozen=True, slots=True)
class Missing:
    """A holder without a connection since a look. beats: that it had at that look."""

    name: str
    beats: int
    since_s: float


class LostHolders:
    """Knows those that are missing. lost_after_s: how long a lost holder was; settling_s: nobody is missed on
    a server that is new for so long.
    """

    def __init__(self, lost_after_s: float, settling_s: float) -> None:
        self._lost_after_s, self._settling_s = lost_after_s, settling_s
        self._missing: dict[str, Missing] = {}
        self._last: Look | None = None
        self._changed_s = float("-inf")  # when the server became another one

    @classmethod
    def of(cls, settings: Settings) -> LostHolders:
        return cls(lost_after_s(settings), settings.lease_ms / 1000)

    def update(self, look: Look) -> list[Missing]:
        """Those that are lost by now, each again at the next look, until its beats are forgotten."""
        last, self._last = self._last, look
        if last is not None and look.server != last.server:
            self._changed_s = look.at_s
        new_s = min(look.up_s, look.at_s - self._changed_s)
        held_up = last is not None and look.at_s - last.at_s > self._lost_after_s / 2
        before = {} if held_up else self._missing  # perhaps all of this machine stood still
        self._missing = {}
        if new_s < self._settling_s:
            return []
        for name, beats in look.beats.items():
            if name in look.connected:
                continue
            missing = before.get(name)
            if missing is None or missing.beats != beats:
                missing = Missing(name, beats, look.at_s)
            self._missing[name] = missing
        return [one for one in self._missing.values() if look.at_s - one.since_s >= self._lost_after_s]


def lost_after_s(settings: Settings) -> float:
    """Time without a connection and without a beat after which a model worker is lost."""
    return max(LEAST_S, MISSED_BEATS * settings.heartbeat_s)
