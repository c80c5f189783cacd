"""How many interactive jobs may be sent and not ended, beyond which they are held and keys take turns.

What is sent runs in the order of sending. So no more is sent than the workers have slots and claim ahead, and
what they run until the next look at the queue: with long jobs that is nothing, with short ones it keeps the
workers busy and adds REFILL_S to a wait.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

from tasks.base.settings import lookahead
from tasks.records.batch_work import Work
from tasks.store.workers import WorkerInfo

LEAST_ROOM = 8  # jobs that may be sent while no worker is there
REFILL_S = 0.2  # of work; rounds of the leader are 0.05 s apart while jobs end
WINDOW_S = 1.0  # over which ends are counted
FORGOTTEN = 0.01  # jobs of a refill


class InteractiveRooms:
    """One thread, whose rounds are: set(), lead, note()."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rooms = {"": LEAST_ROOM}
        self._per_s: dict[str, float] = {}  # ends, by lane
        self._sent: Mapping[str, int] = {}  # and not ended, when the last round was over
        self._at = clock()

    def set(self, workers: Sequence[WorkerInfo]) -> dict[str, int]:
        """By lane; a lane that has no worker has the room of all of them, which is that of the lane ""."""
        lanes = {"": workers} | {w.model: [one for one in workers if one.model == w.model] for w in workers}
        self._rooms = {lane: self._room(lane, able) for lane, able in lanes.items()}
        return self._rooms

    def of(self, lane: str) -> int:
        """As create.lua has it."""
        return self._rooms.get(lane, self._rooms[""])

    def note(self, sent: Mapping[str, int], work: Work) -> None:
        """sent: jobs that have not ended, by lane, with those of this round; work: what it found."""
        now = self._clock()
        passed, self._at = max(now - self._at, 1e-3), now
        kept = math.exp(-passed / WINDOW_S)
        for lane in self._per_s.keys() | self._sent.keys():
            ended = max(0, self._sent.get(lane, 0) - sum(work.interactive_in_flight.get(lane, {}).values()))
            self._per_s[lane] = kept * self._per_s.get(lane, 0.0) + (1 - kept) * ended / passed
            if self._per_s[lane] * REFILL_S < FORGOTTEN and lane not in sent:
                del self._per_s[lane]
        self._sent = sent

    def _room(self, lane: str, workers: Sequence[WorkerInfo]) -> int:
        taken = sum(worker.slots + lookahead(worker.slots) for worker in workers) or LEAST_ROOM
        return taken + int(self._per_s.get(lane, 0.0) * REFILL_S)
