"""The scheduler: admission by KV cells, prefix sharing, chunked prefill. Pure Python."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from engine.core.kv_cache import KVCache
from engine.core.prefix_cache import MIN_SHARED, PrefixCache, common_prefix, head
from engine.core.sequence import SequenceState

PREFILL_APART = 32  # tokens; for fewer, the call costs more than the prefill context saves
FLUSH_AT = 4  # retired cells are flushed once they are a quarter of the cache and nothing runs


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one sequence in one decode call."""

    sequence: SequenceState
    count: int

    @property
    def ready(self) -> bool:
        """Whether it includes the sequence's last token, so that the next one can be sampled.

        Only before the span is decoded: it compares with the tokens that are pending now.
        """
        return self.count == self.sequence.pending


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step decodes.

    spans: the shared call, which drafts join: decoding sequences and short prompt parts. chunk: part of a
    long prompt, in an earlier call of its own. prefill: parts of prompts computed in the prefill context,
    before both.
    """

    spans: list[Span]
    chunk: Span | None = None
    prefill: list[Span] = field(default_factory=list)

    @property
    def sequences(self) -> list[SequenceState]:
        chunk = [self.chunk] if self.chunk else []
        return [span.sequence for span in self.prefill + chunk + self.spans]

    @property
    def ready(self) -> list[SequenceState]:
        """Sequences whose next token is sampled in this step, in the order of spans."""
        return [span.sequence for span in self.spans if span.ready]


class Scheduler:
    """Waiting and running sequences.

    Admission is strictly by (priority, arrival), with one exception: a sequence that shares a prefix with one
    still in prefill is skipped until those cells exist.
    """

    def __init__(
        self,
        cache: KVCache,
        *,
        slots: int,
        max_rows: int,
        chunk_rows: int,
        prefill_cells: int,
        busy: tuple[int, int] | None,
        sharing: bool,
        prefix_cache_seqs: int,
        prefix_cache_cells: int,
    ) -> None:
        """max_rows, chunk_rows: see EngineConfig.rows. prefix_cache_seqs, prefix_cache_cells: limits of the
        prefix cache. prefill_cells: capacity of the prefill context, 0 for none. busy: (requests, cells),
        with so many requests running, admit none that would exceed so many cells.
        """
        assert slots < max_rows, "every running sequence needs a row, and prefill at least one"
        self.running: list[SequenceState] = []
        self._cache = cache
        self._slots = slots
        self._max_rows = max_rows
        self._chunk_rows = chunk_rows
        self._prefill_cells = prefill_cells
        self._busy = busy
        self._sharing = sharing
        self._prefix_cache = PrefixCache(cache, prefix_cache_cells if sharing else 0)
        self._free_ids = list(range(slots + prefix_cache_seqs - 1, -1, -1))
        self._waiting: list[tuple[int, int, SequenceState]] = []
        self._arrivals = count()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def sequences(self) -> Iterator[SequenceState]:
        yield from self.running
        yield from (sequence for _, _, sequence in self._waiting)

    def add(self, sequence: SequenceState) -> None:
        sequence.order = next(self._arrivals)
        self._wait(sequence)

    def _wait(self, sequence: SequenceState) -> None:
        insort(self._waiting, (sequence.request.priority, sequence.order, sequence))

    def schedule(self, now: float) -> Plan:
        """Admit the requests that fit, and choose the rows of this step.

        Every decoding sequence gets one row. Prefill follows, oldest first: up to one chunk in calls of its
        own, and the rows that are left in the shared call. While a sequence is quarantined after a failed
        decode, it runs alone.
        """
        self._admit(now)
        quarantined = next((s for s in self.running if s.quarantined), None)
        running = self.running if quarantined is None else [quarantined]
        spans = [Span(s, 1) for s in running if s.pending == 1]
        prefill: list[Span] = []
        chunk = None
        budget, chunk_budget = self._max_rows - len(spans), self._chunk_rows
        for s in running:
            if s.pending == 1:
                continue
            if self._prefills_apart(s):
                if rows := min(s.unprefilled, chunk_budget):
                    prefill.append(Span(s, rows))
                    chunk_budget -= rows
            elif s.pending > self._chunk_rows > 0:
                if chunk_budget == self._chunk_rows:
                    chunk = Span(s, chunk_budget)
                    chunk_budget = 0
            elif budget:
                spans.append(Span(s, min(s.pending, budget)))
                budget -= spans[-1].count
        return Plan(spans, chunk, prefill)

    def _prefills_apart(self, s: SequenceState) -> bool:
        """Whether the prompt is computed in the prefill context; one that began there stays there."""
        if s.prefilled > s.computed:
            return True
        return s.unprefilled >= PREFILL_APART and s.length <= self._prefill_cells and not s.quarantined

    def finish(self, sequence: SequenceState) -> None:
        """Remove a running or waiting sequence; its prompt may stay in the prefix cache."""
        if sequence not in self.running:
            self._waiting = [entry for entry in self._waiting if entry[2] is not sequence]
            return
        self.running.remove(sequence)
        keep = min(sequence.prompt_length, self._cache.length(sequence.seq_id))
        if self._waiting:  # cached cells slow attention for all: keep only what was shared before
            keep = min(keep, sequence.shared)
        self._free_ids += self._prefix_cache.insert(sequence.seq_id, sequence.prompt[:keep].copy())

    def recompute(self, sequence: SequenceState) -> None:
        """Drop the cells of a sequence after a failed decode, and put it back into the waiting queue.

        It must be admitted again because it may need more cells than before: a prefix that it shared may be
        gone. Then it runs alone.
        """
        self._cache.remove(sequence.seq_id)
        self._free_ids.append(sequence.seq_id)
        self.running.remove(sequence)
        sequence.computed = sequence.prefilled = sequence.cached = 0
        sequence.failures += 1
        sequence.quarantined = True
        self._wait(sequence)

    def _admit(self, now: float) -> None:
        if self._cache.retired > self._cache.capacity // FLUSH_AT:
            self._reset_cache()
        skipped = 0
        while len(self.running) < self._slots and skipped < len(self._waiting):
            sequence = self._waiting[skipped][2]
            source, shared, soon = self._longest_prefix(sequence)
            if soon >= shared + MIN_SHARED:
                skipped += 1
                continue
            cells = sequence.limit - shared
            if self._is_busy(cells):
                return
            if not self._evict_until_free(cells, source):
                if not self._reset_cache():
                    return
                source, shared = -1, 0
            del self._waiting[skipped]
            sequence.seq_id = self._free_ids.pop()
            sequence.admitted_at = sequence.admitted_at or now
            if shared:
                self._cache.share(source, sequence.seq_id, shared)
                self._prefix_cache.touch(source)
                sequence.computed = sequence.prefilled = sequence.cached = sequence.shared = shared
            self.running.append(sequence)

    def _longest_prefix(self, sequence: SequenceState) -> tuple[int, int, int]:
        """(sequence id, length) of the longest prefix in the KV cache, and the length once prefill has ended.

        The last prompt token is never shared: its row gives the first output.
        """
        best_id, best, soon = -1, 0, 0
        if not self._sharing:
            return best_id, best, soon
        prompt = sequence.prompt[:-1]
        key = head(prompt)
        for entry in self._prefix_cache:
            if head(entry.tokens) == key and (n := common_prefix(prompt, entry.tokens)) > best:
                best_id, best = entry.seq_id, n
        for other in self.running:
            if head(other.prompt) != key:
                continue
            n = common_prefix(prompt, other.prompt)
            ready = min(n, other.computed)
            other.shared = max(other.shared, n if n >= MIN_SHARED else 0)
            soon = max(soon, n)
            if ready > best:
                best_id, best = other.seq_id, ready
        if best < MIN_SHARED:
            return -1, 0, soon
        return best_id, best, soon

    @property
    def spare_cells(self) -> int:
        """Free cells that are not reserved for a running sequence."""
        return self._cache.capacity - self._cache.used - self._reserved

    @property
    def _reserved(self) -> int:
        return sum(s.limit - self._cache.length(s.seq_id) for s in self.running)

    def _is_busy(self, cells: int) -> bool:
        if self._busy is None or len(self.running) < self._busy[0]:
            return False
        return self._cache.used + self._reserved + cells > self._busy[1]

    def _evict_until_free(self, cells: int, source: int) -> bool:
        """Evict cached prefixes except `source` until these cells and an id are free; False if impossible."""
        while self.spare_cells < cells or not self._free_ids:
            if all(entry.seq_id == source for entry in self._prefix_cache):
                return False
            self._free_ids.append(self._prefix_cache.evict(spare=source))
        return True

    def _reset_cache(self) -> bool:
        """Clear the prefix cache and free retired cells, so that any request fits; False while one runs."""
        if self.running:
            return False
        self._free_ids += self._prefix_cache.clear()
        self._cache.flush()
        return True
