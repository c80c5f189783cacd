"""The scheduler: admission, layouts, prefix sharing, chunked prefill. Pure Python."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from engine.base.config import TILE_ROWS
from engine.core.layouts import LANE_SLACK, LaneLayout, Layout, SharedLayout
from engine.core.prefix_cache import MIN_SHARED, CachedPrefix, PrefixCache, common_prefix, head
from engine.core.sequence import SequenceState

# So many running requests share a cache, where token trees are possible. But a row walks past the cells of
# the others there, which on CPUs takes more time than trees save.
FEW_ON_CPU, FEW_ON_GPU = 1, 4
PASS_ROWS = 6  # as long as computing so many rows takes reading the weights, on a CPU
WORTH_MOVING = 16  # tokens that are left; a move takes as long as a step of a small model


Source = SequenceState | CachedPrefix | Layout  # of shared cells; a layout: left where the sequence comes


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one sequence in one decode call, from position `start` on."""

    sequence: SequenceState
    start: int
    count: int

    @property
    def ready(self) -> bool:
        """Whether it includes the sequence's last token, so that the next one can be sampled.

        Only before the sampled tokens are committed.
        """
        return self.start + self.count == self.sequence.length


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step decodes.

    prompts: calls for parts of prompts, before the others. spans: the last token of each sequence that is
    decoding, and in lanes, which must not have a gap, the next one of the others; by layout and sequence id.
    """

    prompts: list[list[Span]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    @property
    def calls(self) -> list[list[Span]]:
        """The spans of each layout."""
        found: dict[int, list[Span]] = {}
        for span in self.spans:
            found.setdefault(id(span.sequence.layout), []).append(span)
        return [*found.values()]

    @property
    def sequences(self) -> list[SequenceState]:
        """Those with rows."""
        every = [span for spans in [*self.prompts, self.spans] for span in spans]
        return list({id(span.sequence): span.sequence for span in every}.values())

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
        shared: SharedLayout,
        lanes: LaneLayout | None,
        *,
        slots: int,
        chunk_rows: int,
        sharing: bool,
        prompts_together: bool = True,
        movable: bool = False,
        prefix_cache_bytes: int = 0,
        cell_bytes: int = 1,
    ) -> None:
        """chunk_rows: rows of prompts in one step, beside one of each sequence. prompts_together: in one
        call, where they are in lanes. movable: whether cells can go from one layout into the other.
        prefix_cache_bytes: budget of the prefix cache. cell_bytes: of one token in it.
        """
        self.running: list[SequenceState] = []
        self.few = 0  # so many decode in the shared cache, for drafts that branch there
        self._shared, self._lanes = shared, lanes
        self._slots = slots
        self._chunk_rows = chunk_rows
        self._sharing = sharing
        self._prompts_together = prompts_together
        self._movable = movable
        self._prefix_cache = PrefixCache(prefix_cache_bytes if sharing else 0, cell_bytes)
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

        Every decoding sequence gets one row. Prompts but for their last token go into calls of their own,
        oldest first, up to chunk_rows. While a sequence is quarantined after a failed decode, it runs alone.
        """
        self._admit(now)
        self._arrange()
        quarantined = next((s for s in self.running if s.quarantined), None)
        running = self.running if quarantined is None else [quarantined]
        prompts: list[Span] = []
        spans: list[Span] = []
        budget = self._chunk_rows
        for s in running:
            rows = min(s.pending - 1, budget)
            if rows < min(s.pending - 1, TILE_ROWS) and prompts:
                rows = 0  # a whole tile comes with the next step
            if rows:
                prompts.append(Span(s, s.computed, rows))
                budget -= rows
            start = s.computed + rows
            if start + 1 == s.length or s.layout is self._lanes:
                spans.append(Span(s, start, 1))
        if not any(span.ready for span in spans if span.sequence.layout is self._lanes):
            spans = [span for span in spans if span.sequence.layout is not self._lanes]
        return Plan(self._calls(_placed(prompts)), _placed(spans))

    def _calls(self, prompts: list[Span]) -> list[list[Span]]:
        """Short parts of prompts in consecutive lanes in one call, where filling it up to equal rows costs
        less than further passes; in a shared cache, each would visit all cells."""
        together: list[list[Span]] = []
        apart: list[list[Span]] = []
        for span in prompts:
            short = span.sequence.layout is self._lanes and span.count < TILE_ROWS
            if not (short and self._prompts_together):
                apart.append([span])
            elif together and self._joins(together[-1], span):
                together[-1].append(span)
            else:
                together.append([span])
        return together + apart

    def _joins(self, call: list[Span], span: Span) -> bool:
        counts = [one.count for one in [*call, span]]
        rows = max(counts) * len(counts)
        filling = rows - sum(counts)
        return (
            span.sequence.seq_id == call[-1].sequence.seq_id + 1
            and max(counts) - min(counts) < LANE_SLACK
            and filling <= PASS_ROWS * len(call)
            and rows <= self._chunk_rows
        )

    def finish(self, sequence: SequenceState) -> None:
        """Remove a running or waiting sequence; its prompt may stay in the prefix cache."""
        if sequence not in self.running:
            self._waiting = [entry for entry in self._waiting if entry[2] is not sequence]
            return
        self.running.remove(sequence)
        layout, seq_id = sequence.placed
        keep = min(sequence.prompt_length, sequence.computed, self._prefix_cache.most)
        if self._waiting:  # copying takes time: keep only what was shared before
            keep = min(keep, sequence.shared)
        tokens = sequence.prompt[:keep]
        if self._prefix_cache.wants(tokens):
            layout.truncate(seq_id, keep)
            self._prefix_cache.insert(CachedPrefix(tokens.copy(), layout.save(seq_id), layout))
        if self._sharing:
            layout.leave(seq_id, sequence.tokens[: min(layout.length(seq_id), sequence.length)])
        else:
            layout.release(seq_id)

    def recompute(self, sequence: SequenceState) -> None:
        """Drop the cells of a sequence after a failed decode, and put it back into the waiting queue.

        When it is admitted again, it runs alone.
        """
        layout, seq_id = sequence.placed
        layout.release(seq_id)
        self.running.remove(sequence)
        sequence.computed = sequence.cached = 0
        sequence.failures += 1
        sequence.quarantined = True
        self._wait(sequence)

    # Admission

    def _admit(self, now: float) -> None:
        skipped = 0
        while len(self.running) < self._slots and skipped < len(self._waiting):
            sequence = self._waiting[skipped][2]
            source, shared, soon = self._longest_prefix(sequence)
            if soon >= shared + MIN_SHARED:
                skipped += 1
                continue
            layout = self._layout_for(sequence)
            if layout is None:
                return
            del self._waiting[skipped]
            self._place(sequence, layout, shared if isinstance(source, Layout) else 0)
            if source:
                self._share(source, sequence, shared)
            sequence.admitted_at = sequence.admitted_at or now
            self.running.append(sequence)

    def _layout_for(self, sequence: SequenceState) -> Layout | None:
        """The lanes, if it is short enough for one, else the shared cache; None if there is no room now."""
        if self._lanes and self._lanes.has_room(sequence.limit):
            return self._lanes
        return self._shared if self._shared.has_room(sequence.limit) else None

    def _place(self, sequence: SequenceState, layout: Layout, keep: int = 0) -> None:
        sequence.layout, sequence.seq_id = layout, layout.take(sequence.limit, keep)

    def _longest_prefix(self, sequence: SequenceState) -> tuple[Source | None, int, int]:
        """(who has it, length) of the longest prefix with cells, and the length once prefill has ended.

        The last prompt token is never shared: its row gives the first output.
        """
        if not self._sharing:
            return None, 0, 0
        source: Source | None
        prompt, soon = sequence.prompt[:-1], 0
        source, best = self._prefix_cache.longest(prompt)
        target = self._layout_for(sequence)
        if source and not self._reach(source.layout, target, len(source.tokens)):
            source, best = None, 0
        key = head(prompt)
        for other in self.running:
            layout = other.placed[0]
            apart = layout is not target and not self._reach(layout, target, other.length)
            if apart or head(other.prompt) != key:
                continue
            n = common_prefix(prompt, other.prompt)
            other.shared = max(other.shared, n if n >= MIN_SHARED else 0)
            soon = max(soon, n)
            if min(n, other.computed) > best:
                source, best = other, min(n, other.computed)
        if target and (n := common_prefix(prompt, target.left)) >= best:
            source, best = target, n
        return (source, best, soon) if best >= MIN_SHARED else (None, 0, soon)

    def _reach(self, layout: Layout, target: Layout | None, cells: int) -> bool:
        """Whether so many saved cells of one layout can be restored in the other."""
        return target is not None and (target is layout or self._movable) and target.fits(cells)

    def _share(self, source: Source, sequence: SequenceState, length: int) -> None:
        """Give a sequence the cells of its first `length` tokens."""
        layout, seq_id = sequence.placed
        if isinstance(source, Layout):  # they lie there
            kept, common = self._prefix_cache.longest(sequence.prompt)
            if kept and common >= length:
                self._prefix_cache.use(kept)
        elif isinstance(source, SequenceState):
            other, other_id = source.placed
            tokens = source.tokens[: source.computed]
            free = other is layout is self._shared  # copies nothing
            wanted = not free and self._prefix_cache.wants(tokens)
            if other is layout and not wanted:
                layout.copy(other_id, seq_id, length)
            else:  # the next ones with this prefix find it in the cache, which is faster than copying a lane
                cells = other.save(other_id)
                if wanted:
                    self._prefix_cache.insert(CachedPrefix(tokens.copy(), cells, other, used=True))
                length = layout.restore(cells, seq_id, length)
        else:
            length = layout.restore(source.cells, seq_id, length)
            self._prefix_cache.use(source)
        sequence.computed = sequence.cached = sequence.shared = length

    # Layouts

    def _arrange(self) -> None:
        """Move sequences as their number changes, and close gaps between lanes, which cost a pass each."""
        if self._lanes is None:
            return
        few = len(self.running) <= self.few and not self._waiting
        if self._movable and self._shared.trees and few:
            for s in self.running:
                decoding = s.pending == 1 and s.remaining >= WORTH_MOVING
                if s.layout is self._lanes and decoding and self._shared.has_room(s.limit):
                    self._move(s, self._shared)
        elif self._movable and not few:  # a long one may wait for its room
            for s in self.running:
                if s.layout is self._shared and self._lanes.has_room(s.limit):
                    self._move(s, self._lanes)
        while gap := self._lanes.gap():
            last, free = gap
            moving = next(s for s in self.running if s.layout is self._lanes and s.seq_id == last)
            assert self._lanes.take(moving.limit) == free, "the lowest one"
            self._lanes.copy(last, free, moving.computed)
            self._lanes.release(last)
            moving.seq_id = free

    def _move(self, sequence: SequenceState, target: Layout) -> None:
        layout, seq_id = sequence.placed
        cells = layout.save(seq_id)
        layout.leave(seq_id, sequence.tokens[: sequence.computed].copy())
        self._place(sequence, target)
        sequence.computed = target.restore(cells, sequence.seq_id, sequence.computed)
        sequence.cached = min(sequence.cached, sequence.computed)


def _placed(spans: list[Span]) -> list[Span]:
    """By layout, lanes first, and sequence id: llama.cpp takes consecutive lanes at once."""
    return sorted(spans, key=lambda span: (not span.sequence.placed[0].equal_rows, span.sequence.seq_id))
