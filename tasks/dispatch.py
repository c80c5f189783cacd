"""Sends bulk work, lines of batches and jobs held back: in fair shares, and no more than can run soon."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from tasks.batch import Batch, line_job_id
from tasks.batch_files import read_chunk
from tasks.batches import Active, BatchStore, Line, Work
from tasks.fairness import HELD, Source, shares
from tasks.files import FileStore
from tasks.job import Priority
from tasks.patience import Patience
from tasks.publish import Publisher
from tasks.registry import WorkerInfo
from tasks.store import Unsent

LEAST_ROOM = 64  # jobs outstanding, whatever the workers say: they may just be starting
REFILL = 32  # jobs that end between two looks of the dispatcher, at several hundred a second
IN_HAND = 2  # batches of one owner whose next lines are held in memory: one may end, the next goes on
MOST_UNCOLLECTED = 2000  # results of a batch that wait in Redis, beyond which it gets no new jobs


def room_for(workers: Sequence[WorkerInfo], lookahead: int) -> int:
    """Bulk jobs to keep outstanding: what runs, as much again to be claimed next, and the refill."""
    return max(LEAST_ROOM, 2 * sum(worker.slots + lookahead for worker in workers) + REFILL)


class Dispatcher:
    """Keeps the chunk of each batch that is being sent. One thread."""

    def __init__(
        self,
        batches: BatchStore,
        files: FileStore,
        publisher: Publisher,
        token: str,
        patience: Patience,
    ) -> None:
        self._batches, self._files, self._publisher, self._patience = batches, files, publisher, patience
        self._token = token
        self._chunks: dict[str, tuple[int, list[Line]]] = {}

    def send(self, work: Work, room: int, files_s: float) -> None:
        """One round. Held jobs go before any file is touched; after files_s no further chunk is read.

        The batches of a key whose tokens are spent rest until its next day. Raises LeadLost and
        StoreUnavailable.
        """
        self._forget(work.active)
        batches = {
            active.batch.id: active.batch
            for active in work.active
            if self._may_send(active) and active.batch.owner not in work.spent
        }
        held, outstanding = Counter(work.held), Counter(work.outstanding)
        if held:  # in their shares, as if there were a lot to send of each batch
            unread = (Source(batch.owner, batch.id, _rank(batch), room) for batch in batches.values())
            released = self._release(shares([*_held(held), *unread], outstanding, room, work.weights))
            held.subtract(released)
            outstanding.update(released)
        sources = [*_held(held), *self._sources(batches, files_s)]
        counts = shares(sources, outstanding, room, work.weights)
        self._release(counts)
        for source, count in counts.items():
            if source.name != HELD:
                self._fill(batches[source.name], count)

    def _release(self, counts: Mapping[Source, int]) -> dict[str, int]:
        """How many held jobs that is of each owner."""
        held = {source.owner: count for source, count in counts.items() if source.name == HELD}
        if held:
            released = self._batches.release(self._token, held)
            self._publisher.try_all([Unsent(job_id, Priority.BULK, shown) for job_id, shown in released])
        return held

    def _sources(self, batches: dict[str, Batch], files_s: float) -> Iterator[Source]:
        """Of the batches, among which priority and deadline decide."""
        until, late = time.monotonic() + files_s, False
        served: Counter[str] = Counter()
        for batch in sorted(batches.values(), key=_rank):
            if served[batch.owner] == IN_HAND or (late and not self._has_chunk(batch)):
                continue
            lines = self._patience.attempt(f"sending of {batch.id}", partial(self._chunk, batch))
            late = time.monotonic() > until
            if lines is not None:
                served[batch.owner] += 1
                yield Source(batch.owner, batch.id, _rank(batch), len(lines) - batch.place)

    def _may_send(self, active: Active) -> bool:
        return active.batch.sendable and active.ended < MOST_UNCOLLECTED

    def _fill(self, batch: Batch, count: int) -> None:
        chunk = self._chunk(batch)
        end = batch.place + count
        jobs = [(line_job_id(batch.id, line.number), line) for line in chunk[batch.place : end]]
        after = (batch.chunk, end) if end < len(chunk) else (batch.chunk + 1, 0)
        if self._batches.fill(self._token, batch, after, jobs):
            self._publisher.try_all([Unsent(job_id, Priority.BULK, line.preview) for job_id, line in jobs])

    def _chunk(self, batch: Batch) -> list[Line]:
        if not self._has_chunk(batch):
            self._chunks[batch.id] = batch.chunk, read_chunk(self._files, batch.id, batch.chunk)
        return self._chunks[batch.id][1]

    def _has_chunk(self, batch: Batch) -> bool:
        return batch.id in self._chunks and self._chunks[batch.id][0] == batch.chunk

    def _forget(self, active: Sequence[Active]) -> None:
        for gone in self._chunks.keys() - {a.batch.id for a in active if a.batch.sendable}:
            del self._chunks[gone]


def _held(counts: Mapping[str, int]) -> Iterator[Source]:
    """Jobs sent one by one go before their owner's batches."""
    for owner, count in counts.items():
        yield Source(owner, HELD, (float("-inf"),), count)


def _rank(batch: Batch) -> tuple[float, ...]:
    return -batch.priority, batch.expires_at, batch.seq
