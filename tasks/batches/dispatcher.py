"""Sends lines of batches and deferred jobs in fair shares, and no more than the workers' capacity."""

from __future__ import annotations

import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from tasks.batches.capacity import Capacity
from tasks.batches.cooldown import Cooldown
from tasks.batches.fair_share import DEFERRED, Source, in_turns, shares
from tasks.batches.segments import read_chunk
from tasks.batches.store import BatchStore
from tasks.batches.window_sizes import Crew, first_window, next_size
from tasks.files.base import FileStore
from tasks.records.batch import Batch
from tasks.records.batch_work import Active, QueueCounts, Work
from tasks.records.job import Priority
from tasks.records.packed_line import Head, head
from tasks.records.window import NewWindow
from tasks.store.windows import WindowStore

IN_HAND = 2  # batches of one owner and queue whose next lines are in memory: one may end, the next goes on
MOST_IN_HAND = 16  # of one owner, in all queues: a chunk is megabytes
# Results of a batch that wait in Redis, beyond which none of its lines are sent.
MOST_UNCOLLECTED = 2000
MOST_RESULT_BYTES = 16 * 1024 * 1024


class _Chunk(NamedTuple):
    owner: str
    number: int
    lines: Sequence[bytes]  # packed
    heads: Sequence[Head]


class Dispatcher:
    """Keeps the chunks of batches that are being sent, MOST_IN_HAND of each owner. One thread."""

    def __init__(
        self, batches: BatchStore, windows: WindowStore, files: FileStore, token: str, cooldown: Cooldown
    ) -> None:
        self._batches, self._windows, self._files = batches, windows, files
        self._token, self._cooldown = token, cooldown
        self._chunks: dict[str, _Chunk] = {}
        self._last: dict[str, int] = {}  # batch -> lines of its last window
        self._served: dict[str, int] = {}  # owner -> when something of it was last sent
        self._sendings = itertools.count(1)

    def send_interactive(self, work: Work, capacity: Capacity) -> None:
        """Deferred interactive jobs, where jobs have ended. Raises LeadLost and StoreUnavailable."""
        deferred, in_flight = _counters(work.interactive_deferred), _counters(work.interactive_in_flight)
        for queue, waiting in deferred.items():
            room = capacity.of(queue)
            counts = shares([*_deferred(waiting)], in_flight[queue], room, work.weights, self._served)
            in_flight[queue].update(self._release(queue, counts, Priority.INTERACTIVE))
        capacity.note(work.interactive_in_flight, _totals(in_flight))

    def send(self, work: Work, capacity: Capacity, files_s: float) -> None:
        """One round. Deferred jobs go before any file is touched; after files_s no further chunk is read.

        A queue that is full keeps no other waiting, but the lines of one batch go in their order. A line of a
        key goes while tokens are left after those that were set aside for the lines before it; else the batch
        waits for lines that take fewer, or for the next day. Raises LeadLost and StoreUnavailable.
        """
        self._forget(work.active)
        batches = {
            active.batch.id: active.batch
            for active in work.active
            if self._may_send(active) and work.tokens_left.get(active.batch.owner, 1) > 0
        }
        left = dict(work.tokens_left)
        deferred, in_flight = _counters(work.deferred), _counters(work.in_flight)
        for queue, waiting in deferred.items():  # in their shares, as if each batch had a lot to send
            most = capacity.of(queue)
            own = (batch for batch in batches.values() if self._queue(batch, work.known) == queue)
            unread = (Source(batch.owner, batch.id, _rank(batch), most) for batch in own)
            sources_here = [*_deferred(waiting), *unread]
            counts = shares(sources_here, in_flight[queue], most, work.weights, self._served)
            released = self._release(queue, counts)
            waiting.subtract(released)
            in_flight[queue].update(released)
        until = time.monotonic() + files_s
        more = True
        while more:
            sources = self._sources(batches, work.known, left, until)
            going_on = {}
            for queue in {*deferred, *sources}:
                counts = shares(
                    [*_deferred(deferred[queue]), *sources[queue]],
                    in_flight[queue],
                    capacity.of(queue),
                    work.weights,
                    self._served,
                )
                self._release(queue, counts)
                for source, count in counts.items():
                    if source.name == DEFERRED:
                        continue
                    batch, crew = batches[source.name], capacity.crew(queue)
                    owners = len({one.owner for one in sources[queue]})
                    size = partial(self._size, batch, crew, owners)
                    few = count < min(size(0), source.waiting)
                    if few and in_flight[queue].total() >= crew.slots:
                        continue  # larger windows later
                    if source.owner in left:  # another batch of this round may have taken some
                        heads = self._chunk(batch).heads[batch.offset : batch.offset + count]
                        count = _affordable(heads, left[source.owner])
                        left[source.owner] -= sum(line.max_tokens for line in heads[:count])
                    if count and (after := self._fill(batch, queue, count, size)):
                        in_flight[queue][source.owner] += count
                        self._served[source.owner] = next(self._sendings)
                        if count == source.waiting and self._has_chunk(after):
                            going_on[after.id] = after  # its next line is for another queue
            deferred.clear()
            batches, more = going_on, bool(going_on)
        capacity.note(work.in_flight, _totals(in_flight))

    def _release(
        self, queue: str, counts: Mapping[Source, int], priority: Priority = Priority.BULK
    ) -> dict[str, int]:
        """Send deferred jobs; returns how many of each owner."""
        deferred = {source.owner: count for source, count in counts.items() if source.name == DEFERRED}
        if deferred:
            self._batches.release_deferred(self._token, deferred, queue, priority)
            self._served.update(dict.fromkeys(deferred, next(self._sendings)))
        return deferred

    def _sources(
        self, batches: Mapping[str, Batch], known: Collection[str], left: Mapping[str, int], until: float
    ) -> defaultdict[str, list[Source]]:
        """Batches to send from, by the queue of their next line; an owner's are in order of rank."""
        late = False
        served: Counter[tuple[str, str]] = Counter()
        in_hand: Counter[str] = Counter()
        found: defaultdict[str, list[Source]] = defaultdict(list)
        for batch in in_turns(sorted(batches.values(), key=_rank), lambda one: one.owner):
            owner, guess = batch.owner, self._queue(batch, known)
            full = served[owner, guess] == IN_HAND or in_hand[owner] == MOST_IN_HAND
            if not self._has_chunk(batch) and (late or full):
                continue
            chunk = self._cooldown.attempt(f"sending of {batch.id}", partial(self._chunk, batch))
            late = time.monotonic() > until
            if chunk is None:
                continue
            in_hand[owner] += 1
            queue = self._queue(batch, known)
            if served[owner, queue] == IN_HAND:
                continue
            served[owner, queue] += 1
            queues = (_queue_of(line.model, known) for line in chunk.heads[batch.offset :])
            run = sum(1 for _ in takewhile(queue.__eq__, queues))
            if owner in left:
                run = _affordable(chunk.heads[batch.offset : batch.offset + run], left[owner])
            found[queue].append(Source(owner, batch.id, _rank(batch), run))
        return found

    def _queue(self, batch: Batch, known: Collection[str]) -> str:
        """The queue of the batch's next line; of its model where the chunk is not in memory."""
        model = batch.model or ""
        if self._has_chunk(batch):
            model = self._chunks[batch.id].heads[batch.offset].model
        return _queue_of(model, known)

    def _may_send(self, active: Active) -> bool:
        collected = active.uncollected < MOST_UNCOLLECTED and active.result_bytes < MOST_RESULT_BYTES
        return active.batch.sendable and collected

    def _size(self, batch: Batch, crew: Crew, owners: int, sent: int) -> int:
        """Lines of the next window, after so many of this round."""
        last_chunk = batch.validated and batch.chunk == batch.chunks - 1
        unsent = len(self._chunk(batch).lines) - batch.offset - sent if last_chunk else None
        begun = crew.most_slots if batch.chunk else 0  # by another leader
        return next_size(crew, self._last.get(batch.id, begun), owners, unsent)

    def _fill(self, batch: Batch, queue: str, count: int, size: Callable[[int], int]) -> Batch | None:
        """Send the next lines. Returns the batch after them, or None where nothing was sent.

        size: of the next window, after so many lines.
        """
        chunk = self._chunk(batch)
        end = batch.offset + count
        windows: list[NewWindow] = []
        start = batch.offset
        while start < end:
            most = min(size(start - batch.offset), end - start)
            windows.append(first_window(chunk.lines[start:end], chunk.heads[start:end], most))
            start += len(windows[-1].lines)
            self._last[batch.id] = len(windows[-1].lines)
        after = (batch.chunk, end) if end < len(chunk.lines) else (batch.chunk + 1, 0)
        if not self._windows.send(self._token, batch, after, windows, queue):
            return None
        return replace(batch, chunk=after[0], offset=after[1])

    def _chunk(self, batch: Batch) -> _Chunk:
        if self._has_chunk(batch):
            chunk = self._chunks.pop(batch.id)
        else:
            self._chunks.pop(batch.id, None)
            lines = read_chunk(self._files, batch.id, batch.chunk)
            chunk = _Chunk(batch.owner, batch.chunk, lines, [head(line) for line in lines])
            own = [name for name, other in self._chunks.items() if other.owner == batch.owner]
            for name in own[: max(0, len(own) + 1 - MOST_IN_HAND)]:
                del self._chunks[name]
        self._chunks[batch.id] = chunk  # behind all others: the owner's first is the longest unused
        return chunk

    def _has_chunk(self, batch: Batch) -> bool:
        return batch.id in self._chunks and self._chunks[batch.id].number == batch.chunk

    def _forget(self, active: Sequence[Active]) -> None:
        for gone in self._chunks.keys() - {a.batch.id for a in active if a.batch.sendable}:
            del self._chunks[gone]
        self._last = {a.batch.id: self._last[a.batch.id] for a in active if a.batch.id in self._last}


def _affordable(heads: Sequence[Head], tokens: int) -> int:
    """Number of the first lines before each of which some of the tokens are left."""
    taken = itertools.accumulate((line.max_tokens for line in heads), initial=0)
    return sum(1 for _ in takewhile(tokens.__gt__, itertools.islice(taken, len(heads))))


def _queue_of(model: str, known: Collection[str]) -> str:
    """The queue for a model; "" for an unknown one, which any worker refuses."""
    return model if model in known else ""


def _counters(queues: QueueCounts) -> defaultdict[str, Counter[str]]:
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for queue, counts in queues.items():
        found[queue].update(counts)
    return found


def _totals(queues: Mapping[str, Counter[str]]) -> dict[str, int]:
    return {queue: counts.total() for queue, counts in queues.items()}


def _deferred(counts: Mapping[str, int]) -> Iterator[Source]:
    """Deferred jobs rank before their owner's batches."""
    for owner, count in counts.items():
        yield Source(owner, DEFERRED, (float("-inf"),), count)


def _rank(batch: Batch) -> tuple[float, ...]:
    return -batch.priority, batch.expires_at, batch.seq
