"""Who is lost of those that hold leases, from their beats and from what was seen of their connections.

A killed process has no connections from the next moment on, while its leases last for seconds. But a worker
that lives may also be without one for a while: Redis has restarted, another server has become the master, the
network was away. So a holder is lost only after several beats' time without a beat and, in the end of that,
without a connection. While all beat, nobody asks for connections: a list of thousands is work for Redis.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from tasks.base.settings import Settings

MISSED_BEATS = 3
LEAST_S = 1.0  # with a short lease, too: time to connect again
LOOKS = 6  # in the time after which a silent holder may be lost: half of them without its connections,
ASKING = 1 / 2  # in the second half of that time
ABSENT = 1 / 3
LEASES = 2  # of one that was silent for so many the leases have run out by themselves


@dataclass(frozen=True, slots=True)
class Look:
    """What Redis said. at_s: on this process's monotonic clock. server: which process Redis is; up_s: for how
    long. beats: of each holder that ever beat, how often.
    """

    at_s: float
    server: str
    up_s: float
    beats: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Silent:
    """A holder, and when the last of its beats was first seen. absent_s: when it was first seen to have no
    connection since then.
    """

    name: str
    beats: int
    since_s: float
    absent_s: float | None = None


class LostHolders:
    """At each look first hear(), then see() if there are any to ask for.

    lost_after_s: how long a lost holder was silent; nobody is missed in the first lease's time of a server.
    """

    def __init__(self, lost_after_s: float, lease_s: float) -> None:
        self._lost_after_s, self._lease_s = lost_after_s, lease_s
        self._silent: dict[str, Silent] = {}
        self._last: Look | None = None
        self._changed_s = float("-inf")  # when the server became another one

    @classmethod
    def of(cls, settings: Settings) -> LostHolders:
        return cls(lost_after_s(settings), settings.lease_ms / 1000)

    def hear(self, look: Look) -> frozenset[str]:
        """The holders that have been silent long enough to ask for their connections."""
        last, self._last = self._last, look
        if last is not None and look.server != last.server:
            self._changed_s = look.at_s
        new = min(look.up_s, look.at_s - self._changed_s) < self._lease_s
        held_up = last is not None and look.at_s - last.at_s > self._lost_after_s * ASKING
        before = {} if new or held_up else self._silent  # perhaps all of this machine stood still
        self._silent = {}
        for name, beats in look.beats.items():
            known = before.get(name)
            if known is None or known.beats != beats:
                known = Silent(name, beats, look.at_s)
            self._silent[name] = known
        from_s, to_s = self._lost_after_s * ASKING, LEASES * self._lease_s
        return frozenset(
            one.name for one in self._silent.values() if from_s <= look.at_s - one.since_s < to_s
        )

    def see(self, asked: Set[str], connected: Set[str]) -> list[Silent]:
        """Those that are lost by now, each again at the next look, until its beats are forgotten.

        asked: the answer of hear(); connected: names of connections right after it.
        """
        assert self._last is not None
        now_s, lost = self._last.at_s, []
        for name in asked:
            one = self._silent[name]
            absent_s = None if name in connected else now_s if one.absent_s is None else one.absent_s
            self._silent[name] = one = replace(one, absent_s=absent_s)
            silent = now_s - one.since_s >= self._lost_after_s
            if silent and absent_s is not None and now_s - absent_s >= self._lost_after_s * ABSENT:
                lost.append(one)
        return lost


def lost_after_s(settings: Settings) -> float:
    """Time without a beat after which a model worker without a connection is lost."""
    return max(LEAST_S, MISSED_BEATS * settings.heartbeat_s)
