"""Who runs, and with which rows: admission by KV cells, prefix sharing, chunked prefill. Pure Python."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from engine.core.kv_cache import KVCache
from engine.core.prefix_cache import MIN_SHARED, PrefixStore, common_prefix, head
from engine.core.sequence import Sequence

PREFILL_APART = 32  # rows; for fewer, a call of their own costs more than a context of their own saves
FLUSH_AT = 4  # buried cells are freed at the next pause once they are this part of the cache: a quarter


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one sequence in one decode call."""

    sequence: Sequence
    count: int

    @property
    def ready(self) -> bool:
        """Whether the last token of the sequence is in it, so that the next one can be chosen."""
        return self.count == self.sequence.pending


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step decodes: prompts in the prefill context, the chunk in a call of its own, and
    the spans in one call."""

    spans: list[Span]
    chunk: Span | None = None
    prefill: list[Span] = field(default_factory=list)

    @property
    def sequences(self) -> list[Sequence]:
        chunk = [self.chunk] if self.chunk else []
        return [span.sequence for span in self.prefill + chunk + self.spans]

    @property
    def ready(self) -> list[Sequence]:
        """Sequences whose next token can be chosen after this step."""
        return [span.sequence for span in self.spans if span.ready]


class Scheduler:
    """Waiting and running sequences.

    Admission is strict by (priority, arrival) but for one case: a sequence that shares a longer
    prefix with one still in prefill steps aside until those cells exist.
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
        kept_ids: int,
        kept_cells: int,
    ) -> None:
        """max_rows, chunk_rows: see EngineConfig.rows. kept_ids, kept_cells: bounds of the kept prompts.

        prefill_cells: prompt tokens that the prefill context holds; 0 for no such context.
        busy: (requests, cells); with so many running, others wait rather than fill more cells.
        """
        assert slots < max_rows, "every running sequence needs a row, and prefill at least one"
        self.running: list[Sequence] = []
        self._cache = cache
        self._slots = slots
        self._max_rows = max_rows
        self._chunk_rows = chunk_rows
        self._prefill_cells = prefill_cells
        self._busy = busy
        self._sharing = sharing
        self._kept = PrefixStore(cache, kept_cells if sharing else 0)
        self._free_ids = list(range(slots + kept_ids - 1, -1, -1))
        self._waiting: list[tuple[int, int, Sequence]] = []
        self._arrivals = count()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def sequences(self) -> Iterator[Sequence]:
        yield from self.running
        yield from (sequence for _, _, sequence in self._waiting)

    def add(self, sequence: Sequence) -> None:
        sequence.order = next(self._arrivals)
        self._wait(sequence)

    def _wait(self, sequence: Sequence) -> None:
        insort(self._waiting, (sequence.request.priority, sequence.order, sequence))

    def schedule(self, now: float) -> Plan:
        """Admit what fits, and choose the rows of this step.

        Decoding sequences get their row first; prefill follows, oldest first: up to one chunk in calls of
        its own, and what room is left in the call of the others. No running request waits for more, but
        while one that is suspect after a failed decode runs alone.
        """
        self._admit(now)
        suspect = next((s for s in self.running if s.suspect), None)
        running = self.running if suspect is None else [suspect]
        spans = [Span(s, 1) for s in running if s.pending == 1]
        prefill: list[Span] = []
        chunk = None
        room, chunk_room = self._max_rows - len(spans), self._chunk_rows
        for s in running:
            if s.pending == 1:
                continue
            if self._has_prefill_context(s):
                if rows := min(s.unprefilled, chunk_room):
                    prefill.append(Span(s, rows))
                    chunk_room -= rows
            elif s.pending > self._chunk_rows > 0:
                if chunk_room == self._chunk_rows:
                    chunk = Span(s, chunk_room)
                    chunk_room = 0
            elif room:
                spans.append(Span(s, min(s.pending, room)))
                room -= spans[-1].count
        return Plan(spans, chunk, prefill)

    def _has_prefill_context(self, s: Sequence) -> bool:
        """Whether a prompt goes through the prefill context. Once begun, it stays there."""
        if s.prefilled > s.computed:
            return True
        return s.unprefilled >= PREFILL_APART and s.length <= self._prefill_cells and not s.suspect

    def retire(self, sequence: Sequence) -> None:
        """Let a sequence go, wherever it is, and keep the part of its prompt that others may share."""
        if sequence not in self.running:
            self._waiting = [entry for entry in self._waiting if entry[2] is not sequence]
            return
        self.running.remove(sequence)
        keep = min(sequence.prompt_length, self._cache.length(sequence.seq_id))
        if self._waiting:  # every kept cell slows the others' attention: keep only what has proven shared
            keep = min(keep, sequence.shared)
        self._free_ids += self._kept.keep(sequence.seq_id, sequence.prompt[:keep].copy())

    def recompute(self, sequence: Sequence) -> None:
        """Forget the cells of a sequence after a failed decode.

        It waits at its old place, since it may need more cells than before: a prefix that it shared
        may be gone. Admitted again, it prefills alone.
        """
        self._cache.remove(sequence.seq_id)
        self._free_ids.append(sequence.seq_id)
        self.running.remove(sequence)
        sequence.computed = sequence.prefilled = sequence.cached = 0
        sequence.failures += 1
        sequence.suspect = True
        self._wait(sequence)

    def _admit(self, now: float) -> None:
        if self._cache.buried > self._cache.capacity // FLUSH_AT:
            self._start_afresh()
        stepped_aside = 0
        while len(self.running) < self._slots and stepped_aside < len(self._waiting):
            sequence = self._waiting[stepped_aside][2]
            source, shared, soon = self._longest_prefix(sequence)
            if soon >= shared + MIN_SHARED:
                stepped_aside += 1
                continue
            cells = sequence.limit - shared
            if self._is_busy(cells):
                return
            if not self._make_room(cells, source):
                if not self._start_afresh():
                    return
                source, shared = -1, 0
            del self._waiting[stepped_aside]
            sequence.seq_id = self._free_ids.pop()
            sequence.admitted = sequence.admitted or now
            if shared:
                self._cache.share(source, sequence.seq_id, shared)
                self._kept.touch(source)
                sequence.computed = sequence.prefilled = sequence.cached = sequence.shared = shared
            self.running.append(sequence)

    def _longest_prefix(self, sequence: Sequence) -> tuple[int, int, int]:
        """(sequence id, length) of the longest prefix in the cache, and the length it will soon have.

        The last prompt token is never shared: its row gives the first output.
        """
        best_id, best, soon = -1, 0, 0
        if not self._sharing:
            return best_id, best, soon
        prompt = sequence.prompt[:-1]
        key = head(prompt)
        for kept in self._kept:
            if head(kept.tokens) == key and (n := common_prefix(prompt, kept.tokens)) > best:
                best_id, best = kept.seq_id, n
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
        """Cells that are free and not promised to a running sequence."""
        return self._cache.capacity - self._cache.used - self._promised

    @property
    def _promised(self) -> int:
        return sum(s.limit - self._cache.length(s.seq_id) for s in self.running)

    def _is_busy(self, cells: int) -> bool:
        if self._busy is None or len(self.running) < self._busy[0]:
            return False
        return self._cache.used + self._promised + cells > self._busy[1]

    def _make_room(self, cells: int, source: int) -> bool:
        """Evict kept prompts until `cells` and a sequence id are free; False when that is not enough."""
        while self.spare_cells < cells or not self._free_ids:
            if all(kept.seq_id == source for kept in self._kept):
                return False
            self._free_ids.append(self._kept.evict(spare=source))
        return True

    def _start_afresh(self) -> bool:
        """With nothing running, drop all kept prompts and buried cells: then any request fits.

        False while something runs. Also worth it early, since attention slows with every cell.
        """
        if self.running:
            return False
        self._free_ids += self._kept.clear()
        self._cache.flush()
        return True
