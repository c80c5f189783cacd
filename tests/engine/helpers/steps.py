"""A scheduler on a shadow cache, stepped as the engine steps it but with no model and no text."""

from __future__ import annotations

import numpy as np

from engine import Request, SamplingParams
from engine.core.kv_cache import KVCache
from engine.core.scheduler import Plan, Scheduler, Span
from engine.core.sequence import SequenceState
from tests.engine.helpers.shadow import ShadowMemory

PREFIX_CACHE_SEQS = 4


class Steps:
    """Every step checks what must hold in every step."""

    def __init__(
        self,
        capacity: int = 1000,
        *,
        slots: int = 4,
        max_rows: int = 20,
        chunk_rows: int = 0,
        prefill_cells: int = 0,
        busy: tuple[int, int] | None = None,
        sharing: bool = True,
        prefix_cache_cells: int = 500,
        ordered: bool = False,
    ) -> None:
        self.memory = ShadowMemory(capacity)
        self.cache = KVCache(self.memory, capacity, ordered=ordered)
        self.scheduler = Scheduler(
            self.cache,
            slots=slots,
            max_rows=max_rows,
            chunk_rows=chunk_rows,
            prefill_cells=prefill_cells,
            busy=busy,
            sharing=sharing,
            prefix_cache_seqs=PREFIX_CACHE_SEQS,
            prefix_cache_cells=prefix_cache_cells,
        )
        self.slots, self.max_rows, self.chunk_rows = slots, max_rows, chunk_rows
        self.ended: list[str] = []
        self._prefilling: SequenceState | None = None
        self.ready: list[str] = []  # whose next token the last step could choose
        self.now = 0.0

    def add(self, name: str, prompt: list[int], max_tokens: int = 5, priority: int = 0) -> SequenceState:
        params = SamplingParams(max_tokens=max_tokens)
        request = Request(id=name, prompt="-", sampling=params, priority=priority)
        sequence = SequenceState(request, np.array(prompt, dtype=np.int32), arrived=self.now)
        self.scheduler.add(sequence)
        return sequence

    @property
    def running(self) -> list[str]:
        return [s.request.id for s in self.scheduler.running]

    @property
    def kept(self) -> list[list[int]]:
        """The cached prefixes, least recently used first."""
        return [kept.tokens.tolist() for kept in self.scheduler._prefix_cache]

    def step(self, *, fails: bool = False) -> Plan:
        """Schedule and run one step; when it fails, all its sequences are recomputed."""
        self.now += 1.0
        plan = self.scheduler.schedule(self.now)
        self._check(plan)
        if fails:
            for sequence in plan.sequences:
                self._fill(sequence, 1)
                self.scheduler.recompute(sequence)
        else:
            self._run(plan)
        self._check_cells()
        return plan

    def finish(self, limit: int = 20_000) -> None:
        """Step until nothing is left."""
        for _ in range(limit):
            if not self.scheduler.running and not self.scheduler.waiting:
                return
            self.step()
        raise AssertionError("the scheduler does not come to an end")

    def end(self, sequence: SequenceState) -> None:
        self.scheduler.finish(sequence)
        self.ended.append(sequence.request.id)
        self._check_cells()

    def _run(self, plan: Plan) -> None:
        spans = ([plan.chunk] if plan.chunk else []) + plan.spans
        ready = plan.ready
        self.ready = [s.request.id for s in ready]
        for span in plan.prefill:
            self._prefill(span)
        for span in spans:
            self._fill(span.sequence, span.count)
            span.sequence.computed += span.count
            span.sequence.quarantined &= span.sequence not in ready
        for sequence in ready:
            sequence.tokens[sequence.length] = 9
            sequence.length += 1
            if not sequence.remaining:
                self.end(sequence)

    def _prefill(self, span: Span) -> None:
        """In the prefill context, until all cells move at once."""
        s = span.sequence
        if s.prefilled == s.computed:
            self._prefilling = s
        assert self._prefilling is s, "one prompt at a time"
        s.prefilled += span.count
        if s.prefilled == s.length - 1:
            self._fill(s, s.prefilled - s.computed)
            s.computed = s.prefilled

    def _fill(self, sequence: SequenceState, count: int) -> None:
        self.cache.append(sequence.seq_id, count)
        self.memory.fill(sequence.seq_id, count)

    def _check(self, plan: Plan) -> None:
        running, waiting = self.scheduler.running, self.scheduler.waiting
        assert len(running) <= self.slots
        assert sum(span.count for span in plan.spans) <= self.max_rows
        assert all(0 < span.count <= span.sequence.pending for span in plan.spans)
        assert len({id(s) for s in plan.sequences}) == len(plan.sequences), "once a step"
        assert all(s in running for s in plan.sequences)
        assert plan.sequences or not (running or waiting), "there is work, and nothing runs"
        assert all(0 < span.count <= span.sequence.unprefilled for span in plan.prefill)
        assert sum(span.count for span in plan.prefill) <= self.chunk_rows
        assert not (plan.chunk and plan.prefill), "one chunk a step"
        if plan.chunk:
            assert plan.chunk.count == self.chunk_rows < plan.chunk.sequence.pending
        quarantined = [s for s in running if s.quarantined]
        if quarantined:
            assert plan.sequences == quarantined[:1], "a quarantined sequence runs alone"
        else:
            decoding = [s for s in running if s.pending == 1]
            assert [span.sequence for span in plan.spans][: len(decoding)] == decoding, "no one is stalled"

    def _check_cells(self) -> None:
        held = {s.seq_id: s.computed for s in self.scheduler.running}
        held |= {kept.seq_id: len(kept.tokens) for kept in self.scheduler._prefix_cache}
        positions: dict[int, list[int]] = {}  # in one pass: this is done after every step
        for cell in self.memory.cells:
            for seq_id in cell.owners:
                positions.setdefault(seq_id, []).append(cell.position)
        for seq_id in range(self.slots + PREFIX_CACHE_SEQS):
            length = held.get(seq_id, 0)
            assert self.cache.length(seq_id) == length
            assert sorted(positions.get(seq_id, ())) == list(range(length))
        assert self.cache.used == self.memory.used <= self.cache.capacity
        assert len(self.scheduler._free_ids) + len(held) == self.slots + PREFIX_CACHE_SEQS


def words(*runs: tuple[int, int]) -> list[int]:
    """A prompt of runs: (word, how often)."""
    return [word for word, count in runs for _ in range(count)]
