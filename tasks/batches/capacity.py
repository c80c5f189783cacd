"""How many jobs of a model queue may be in flight, beyond which they are deferred and keys take turns.

In flight is what was sent and has not ended; it runs in the order of sending. So no more is sent than the
workers have slots and claim ahead (of lines of batches two windows each), and what ends until the leader
sends again: with long jobs that is nothing, with short ones it keeps the workers busy.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from tasks.base.settings import lookahead
from tasks.batches.window_sizes import Crew
from tasks.records.batch_work import QueueCounts
from tasks.store.workers import WorkerInfo

SLOTS_UNSEEN = 8  # of workers, while none is there: they may just be starting
GAPS = 2  # between rounds of the leader in which jobs end before others are sent
WINDOW_S = 1.0  # over which ends are counted, and the longest gap is remembered
FORGOTTEN = 0.1  # jobs a second
# One place in so many is left to jobs of a lower priority that wait, where there are as many slots.
RESERVED = 8


class Capacity:
    """Of the jobs of one priority. One thread, in rounds: update() when they begin, note() when all is sent.

    fills: jobs in flight for each place of the workers, which are their slots and the jobs they claim ahead.
    With 2, 16 slots and 4 jobs ahead, that is 40: no slot waits where all get free at once. With 1, a job
    that is sent waits for no more than one other. most_s: of work that is sent ahead, at most.
    """

    def __init__(
        self,
        fills: int,
        most_s: float,
        clock: Callable[[], float] = time.monotonic,
        windows: int = 0,
    ) -> None:
        """windows: of lines that each worker may have beyond its places, where `fills` gives it less."""
        self._fills, self._most_s, self._clock, self._windows = fills, most_s, clock, windows
        self._by_queue = {"": fills * SLOTS_UNSEEN}
        self._crews: dict[str, Crew] = {}
        self._per_s: dict[str, float] = {}  # ends, by model queue
        self._sent: Mapping[str, int] = {}  # in flight when the last round had sent
        self._gap_s = 0.0  # the longest between two rounds of late
        self._at = clock()

    def update(self, workers: Sequence[WorkerInfo], waiting: Collection[str] = ()) -> dict[str, int]:
        """By model queue; a queue that has no worker has the capacity of all of them, which is that of "".

        waiting: queues in which jobs of a lower priority wait, where "" is served by all workers. There the
        capacity is some places less and nothing is sent ahead, so that those jobs do not wait for ever.
        """
        slots, taken = Counter({"": 0}), Counter({"": 0})
        for worker in workers:
            for queue in {"", worker.model}:
                slots[queue] += worker.slots
                taken[queue] += worker.slots + lookahead(worker.slots)
        members = {queue: [one for one in workers if queue in ("", one.model)] for queue in taken}
        self._crews = {
            queue: Crew.of(found, self._per_s.get(queue, 0.0)) for queue, found in members.items() if found
        }
        shared = {*taken} if "" in waiting else {*waiting, ""} if waiting else set()
        self._by_queue = {
            queue: count - math.ceil(count / RESERVED)
            if queue in shared and slots[queue] >= RESERVED
            else self._of(queue, count or SLOTS_UNSEEN)
            for queue, count in taken.items()
        }
        return self._by_queue

    @property
    def in_flight(self) -> Collection[str]:
        """Queues that had jobs in flight after the last round."""
        return [queue for queue, count in self._sent.items() if count]

    def of(self, queue: str) -> int:
        """The capacity of this queue, or that of "" if it has no worker; jobs/create.lua decides alike."""
        return self._by_queue.get(queue, self._by_queue[""])

    def crew(self, queue: str) -> Crew:
        """The workers of this queue, or all if it has none."""
        unseen = Crew(1, SLOTS_UNSEEN, SLOTS_UNSEEN, SLOTS_UNSEEN)
        return self._crews.get(queue) or self._crews.get("", unseen)

    def note(self, found: QueueCounts, sent: Mapping[str, int]) -> None:
        """found: jobs in flight when the round began, by queue and owner; sent: with those of this round."""
        now = self._clock()
        passed, self._at = max(now - self._at, 1e-3), now
        kept = math.exp(-passed / WINDOW_S)
        self._gap_s *= kept
        for queue in self._per_s.keys() | self._sent.keys():
            ended = max(0, self._sent.get(queue, 0) - sum(found.get(queue, {}).values()))
            self._per_s[queue] = kept * self._per_s.get(queue, 0.0) + (1 - kept) * ended / passed
            if ended:
                self._gap_s = max(self._gap_s, passed)
            if self._per_s[queue] < FORGOTTEN and queue not in sent:
                del self._per_s[queue]
        self._sent = sent

    def _of(self, queue: str, taken: int) -> int:
        ahead_s = min(GAPS * self._gap_s, self._most_s)
        crew = self._crews.get(queue)
        windows = 0 if crew is None else self._windows * crew.workers * crew.window
        return taken + max((self._fills - 1) * taken, windows) + int(self._per_s.get(queue, 0.0) * ahead_s)
