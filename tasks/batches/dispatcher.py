"""Sends lines of batches and jobs held back: in fair shares, and no more than can run soon."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile

from tasks.base.settings import lookahead
from tasks.batches.cooldown import Cooldown
from tasks.batches.fair_share import DEFERRED, Source, in_turns, shares
from tasks.batches.interactive_rooms import InteractiveRooms
from tasks.batches.segments import read_chunk
from tasks.batches.store import BatchStore
from tasks.broker.publisher import Publisher
from tasks.files.base import FileStore
from tasks.records.batch import Batch, line_job_id
from tasks.records.batch_work import Active, Line, QueueCounts, Work
from tasks.records.claim import QueueMessage
from tasks.records.job import Priority
from tasks.store.workers import WorkerInfo

LEAST_ROOM = 64  # jobs outstanding, whatever the workers say: they may just be starting
REFILL = 32  # jobs that end between two looks of the dispatcher, at several hundred a second
IN_HAND = 2  # batches of one owner and lane whose next lines are held: one may end, the next goes on
MOST_IN_HAND = 16  # of one owner, in all lanes: a chunk is megabytes
MOST_UNCOLLECTED = 2000  # results of a batch that wait in Redis, beyond which it gets no new jobs


def room_for(workers: Sequence[WorkerInfo]) -> int:
    """Bulk jobs to keep outstanding: what runs, as much again to be claimed next, and the refill."""
    return max(LEAST_ROOM, 2 * sum(worker.slots + lookahead(worker.slots) for worker in workers) + REFILL)


class Dispatcher:
    """Keeps the chunk of each batch that is being sent. One thread."""

    def __init__(
        self,
        batches: BatchStore,
        files: FileStore,
        publisher: Publisher,
        token: str,
        patience: Cooldown,
    ) -> None:
        self._batches, self._files, self._publisher, self._patience = batches, files, publisher, patience
        self._token = token
        self._chunks: dict[str, tuple[int, list[Line]]] = {}

    def send_interactive(self, work: Work, rooms: InteractiveRooms) -> None:
        """Held interactive jobs, where jobs have ended. Raises LeadLost and StoreUnavailable."""
        held, outstanding = _counters(work.interactive_deferred), _counters(work.interactive_in_flight)
        for lane, waiting in held.items():
            counts = shares([*_held(waiting)], outstanding[lane], rooms.of(lane), work.weights)
            outstanding[lane].update(self._release(lane, counts, Priority.INTERACTIVE))
        rooms.note({lane: sum(counts.values()) for lane, counts in outstanding.items()}, work)

    def send(self, work: Work, room: Callable[[str], int], files_s: float) -> None:
        """One round. Held jobs go before any file is touched; after files_s no further chunk is read.

        room: bulk jobs that may be outstanding, of each lane. A lane that is full keeps no other waiting, but
        the lines of one batch go in their order. The batches of a key whose tokens are spent rest until its
        next day. Raises LeadLost and StoreUnavailable.
        """
        self._forget(work.active)
        batches = {
            active.batch.id: active.batch
            for active in work.active
            if self._may_send(active) and active.batch.owner not in work.spent
        }
        held, outstanding = _counters(work.deferred), _counters(work.in_flight)
        for lane, waiting in list(
            held.items()
        ):  # in their shares, as if there were a lot to send of each batch
            most = room(lane)
            own = (batch for batch in batches.values() if self._lane(batch, work.known) == lane)
            unread = (Source(batch.owner, batch.id, _rank(batch), most) for batch in own)
            counts = shares([*_held(waiting), *unread], outstanding[lane], most, work.weights)
            released = self._release(lane, counts)
            waiting.subtract(released)
            outstanding[lane].update(released)
        until = time.monotonic() + files_s
        more = True
        while more:
            sources = self._sources(batches, work.known, until)
            going_on = {}
            for lane in {*held, *sources}:
                counts = shares(
                    [*_held(held[lane]), *sources[lane]], outstanding[lane], room(lane), work.weights
                )
                self._release(lane, counts)
                for source, count in counts.items():
                    if source.name != DEFERRED and (after := self._fill(batches[source.name], lane, count)):
                        outstanding[lane][source.owner] += count
                        if count == source.waiting and self._has_chunk(after):
                            going_on[after.id] = after  # its next line is for another lane
            held.clear()
            batches, more = going_on, bool(going_on)

    def _release(
        self, lane: str, counts: Mapping[Source, int], priority: Priority = Priority.BULK
    ) -> dict[str, int]:
        """How many held jobs that is of each owner."""
        held = {source.owner: count for source, count in counts.items() if source.name == DEFERRED}
        if held:
            self._publisher.try_all(self._batches.release(self._token, held, lane, priority))
        return held

    def _sources(
        self, batches: Mapping[str, Batch], known: Collection[str], until: float
    ) -> defaultdict[str, list[Source]]:
        """Of the batches, by the lane of their next line; priority and deadline decide among an owner's."""
        late = False
        served: Counter[tuple[str, str]] = Counter()
        in_hand: Counter[str] = Counter()
        found: defaultdict[str, list[Source]] = defaultdict(list)
        for batch in in_turns(sorted(batches.values(), key=_rank), lambda one: one.owner):
            owner, guess = batch.owner, self._lane(batch, known)
            full = served[owner, guess] == IN_HAND or in_hand[owner] == MOST_IN_HAND
            if not self._has_chunk(batch) and (late or full):
                continue
            lines = self._patience.attempt(f"sending of {batch.id}", partial(self._chunk, batch))
            late = time.monotonic() > until
            if lines is None:
                continue
            in_hand[owner] += 1
            lane = self._lane(batch, known)
            if served[owner, lane] == IN_HAND:
                continue
            served[owner, lane] += 1
            lanes = (_lane_of(line.model, known) for line in lines[batch.offset :])
            run = sum(1 for _ in takewhile(lane.__eq__, lanes))
            found[lane].append(Source(owner, batch.id, _rank(batch), run))
        return found

    def _lane(self, batch: Batch, known: Collection[str]) -> str:
        """Of its next line, or as far as the file is known."""
        model = batch.model or ""
        if self._has_chunk(batch):
            model = self._chunks[batch.id][1][batch.offset].model
        return _lane_of(model, known)

    def _may_send(self, active: Active) -> bool:
        return active.batch.sendable and active.ended < MOST_UNCOLLECTED

    def _fill(self, batch: Batch, lane: str, count: int) -> Batch | None:
        """The batch behind these lines; None where nothing was sent."""
        chunk = self._chunk(batch)
        end = batch.offset + count
        jobs = [(line_job_id(batch.id, line.number), line) for line in chunk[batch.offset : end]]
        after = (batch.chunk, end) if end < len(chunk) else (batch.chunk + 1, 0)
        if not self._batches.fill(self._token, batch, after, jobs, lane):
            return None
        unsent = [QueueMessage(job_id, Priority.BULK, line.preview, lane) for job_id, line in jobs]
        self._publisher.try_all(unsent)
        return replace(batch, chunk=after[0], offset=after[1])

    def _chunk(self, batch: Batch) -> list[Line]:
        if not self._has_chunk(batch):
            self._chunks[batch.id] = batch.chunk, read_chunk(self._files, batch.id, batch.chunk)
        return self._chunks[batch.id][1]

    def _has_chunk(self, batch: Batch) -> bool:
        return batch.id in self._chunks and self._chunks[batch.id][0] == batch.chunk

    def _forget(self, active: Sequence[Active]) -> None:
        for gone in self._chunks.keys() - {a.batch.id for a in active if a.batch.sendable}:
            del self._chunks[gone]


def _lane_of(model: str, known: Collection[str]) -> str:
    """Where a line goes that asks for this model: one that nobody knows is refused by any worker."""
    return model if model in known else ""


def _counters(lanes: QueueCounts) -> defaultdict[str, Counter[str]]:
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for lane, counts in lanes.items():
        found[lane].update(counts)
    return found


def _held(counts: Mapping[str, int]) -> Iterator[Source]:
    """Jobs sent one by one go before their owner's batches."""
    for owner, count in counts.items():
        yield Source(owner, DEFERRED, (float("-inf"),), count)


def _rank(batch: Batch) -> tuple[float, ...]:
    return -batch.priority, batch.expires_at, batch.seq
