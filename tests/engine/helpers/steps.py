"""A scheduler on shadow contexts, stepped as the engine steps it but with no model and no text."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from engine import Request, SamplingParams
from engine.base.config import TILE_ROWS
from engine.core.layouts import LANE_SLACK, LaneLayout, Layout, SharedLayout
from engine.core.rows_builder import RowsBuilder
from engine.core.scheduler import FEW_ON_GPU, Plan, Scheduler, Span
from engine.core.sequence import SequenceState
from engine.core.token_tree import EMPTY_DRAFT, Draft, fit, paths
from tests.engine.core.test_token_tree import bush
from tests.engine.helpers.shadow import ShadowContext

TOKEN_BYTES = 4  # of a saved cell of a shadow context
LEAF_IDS = 6
SAMPLED = 9  # the token that is always sampled


class Steps:
    """Every step checks what must hold in every step."""

    def __init__(
        self,
        capacity: int = 1000,
        *,
        lane: int = 200,
        slots: int = 4,
        chunk_rows: int = 64,
        sharing: bool = True,
        cached_tokens: int = 500,
        movable: bool = True,
        trees: bool = False,
        alone: bool = False,
        drafts: random.Random | None = None,
    ) -> None:
        """capacity: of the shared cache. lane: tokens of each lane; 0 is none. alone: as if batch-invariant.

        drafts: chooses drafts and what is accepted of them; None for no drafts.
        """
        self.memory: Any = ShadowContext(capacity)  # Any: they stand for contexts
        self.streams: Any = ShadowContext(lane + LANE_SLACK, streams=slots)
        leaf_ids = range(slots, slots + LEAF_IDS)
        self.shared = SharedLayout(
            self.memory, seq_ids=slots, leaf_ids=leaf_ids, capacity=capacity, alone=alone
        )
        self.lanes = LaneLayout(self.streams, lanes=slots, cells=lane + LANE_SLACK) if lane else None
        self.scheduler = Scheduler(
            self.shared,
            self.lanes,
            slots=slots,
            chunk_rows=chunk_rows,
            sharing=sharing,
            prompts_together=not alone,
            movable=movable,
            prefix_cache_bytes=cached_tokens * TOKEN_BYTES,
        )
        self.scheduler.few = FEW_ON_GPU if trees else 0
        self.slots, self.chunk_rows, self.alone = slots, chunk_rows, alone
        self.cached_tokens = cached_tokens
        self.ended: list[str] = []
        self.ready: list[str] = []  # whose next token the last step could choose
        self.now = 0.0
        self._drafts = drafts

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

    @property
    def places(self) -> dict[str, tuple[str, int]]:
        """Where running sequences are: layout and sequence id."""
        return {
            s.request.id: ("shared" if s.layout is self.shared else "lane", s.seq_id)
            for s in self.scheduler.running
        }

    @property
    def layouts(self) -> list[str]:
        """The layout of each running sequence, in the order of admission."""
        return [layout for layout, _ in self.places.values()]

    def step(self, *, fails: bool = False) -> Plan:
        """Schedule and run one step; when it fails, all its sequences are recomputed."""
        self.now += 1.0
        plan = self.scheduler.schedule(self.now)
        self._check(plan)
        if fails:
            for spans in [*plan.prompts, *plan.calls][:1]:
                self._decode(spans, {})
            for sequence in plan.sequences:
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

    # What the engine does with a plan

    def _run(self, plan: Plan) -> None:
        ready = plan.ready
        self.ready = [s.request.id for s in ready]
        for spans in plan.prompts:
            self._decode(spans, {})
            for span in spans:
                span.sequence.computed += span.count
            self._drop_filling(spans)
        drafts = self._draft(ready)
        for spans in plan.calls:
            self._decode(spans, drafts)
        for span in plan.spans:
            span.sequence.computed += span.count
        for s in ready:
            s.quarantined = False
            draft, (layout, seq_id) = drafts[id(s)], s.placed
            nodes: list[int] = []
            if draft.tree:
                assert self._drafts
                path = self._drafts.choice(draft.paths)
                nodes = path[: self._drafts.randint(0, len(path))]
                layout.rewind(seq_id, s.computed, nodes, draft.paths)
                s.computed += len(nodes)
            sampled = [*(draft.tree[node].token for node in nodes), SAMPLED]
            s.tokens[s.length : s.length + len(sampled)] = sampled
            s.length += len(sampled)
        self._drop_filling(plan.spans)
        for s in ready:
            if not s.remaining:
                self.end(s)

    def _drop_filling(self, spans: list[Span]) -> None:
        for span in spans:
            layout, seq_id = span.sequence.placed
            layout.truncate(seq_id, span.sequence.computed)

    def _draft(self, ready: list[SequenceState]) -> dict[int, Draft]:
        """By id() of the sequence."""
        leaf_ids = list(self.shared.leaf_ids)
        drafts: dict[int, Draft] = {}
        for s in ready:
            draft = EMPTY_DRAFT
            most = min(s.remaining - 1, LANE_SLACK - 1)
            if self._drafts and (nodes := self._drafts.randint(0, most)):
                tree = bush(self._drafts.randrange(1000), nodes)
                if s.placed[0].trees:
                    tree = fit(tree, nodes=nodes, depth=most, leaves=1 + len(leaf_ids))
                    branches = len(paths(tree)) - 1
                    draft = Draft(tree, paths(tree), leaf_ids[:branches])
                    del leaf_ids[:branches]
                else:
                    draft = Draft.chain(tree, most)
            drafts[id(s)] = draft
        return drafts

    def _decode(self, spans: list[Span], drafts: dict[int, Draft]) -> None:
        layout, rows = spans[0].sequence.placed[0], RowsBuilder()
        drafted = [drafts.get(id(span.sequence), EMPTY_DRAFT) for span in spans]
        counts = [span.count + len(draft.tree) for span, draft in zip(spans, drafted, strict=True)]
        width = max(counts) if layout.equal_rows else 0
        for span, draft, own in zip(spans, drafted, counts, strict=True):
            s, filling = span.sequence, max(0, width - own)
            assert s.layout is layout, "a call is in one layout"
            if draft.leaf_ids:
                self.shared.branch(s.seq_id, draft.leaf_ids)
            layout.append(s.seq_id, own + filling)
            tokens = s.tokens[span.start : span.start + span.count].tolist()
            rows.add(s.seq_id, tokens, span.start, draft, filling=filling)
        layout.context.decode(rows.build())

    # What must hold

    def _check(self, plan: Plan) -> None:
        running, waiting = self.scheduler.running, self.scheduler.waiting
        assert len(running) <= self.slots
        assert plan.sequences or not (running or waiting), "there is work, and nothing runs"
        assert all(s in running for s in plan.sequences)
        self._check_prompts(plan)
        self._check_spans(plan)
        quarantined = [s for s in running if s.quarantined]
        if quarantined:
            assert plan.sequences == quarantined[:1], "a quarantined sequence runs alone"
            return
        ready = {id(s) for s in plan.ready}
        assert all(id(s) in ready for s in running if s.pending == 1), "no one is stalled"
        oldest = next((s for s in running if s.pending > 1), None)
        assert oldest is None or oldest in [span.sequence for spans in plan.prompts for span in spans]
        if self.lanes:
            lanes = [s.seq_id for s in running if s.layout is self.lanes]
            assert sorted(lanes) == list(range(len(lanes))), "lanes without a gap"
            spans = [span for span in plan.spans if span.sequence.layout is self.lanes]
            assert len(spans) == (len(lanes) if any(span.ready for span in spans) else 0)

    def _check_prompts(self, plan: Plan) -> None:
        spans = [span for call in plan.prompts for span in call]
        assert len({id(span.sequence) for span in spans}) == len(spans), "one part of a prompt a step"
        assert sum(span.count for span in spans) <= self.chunk_rows
        for span in spans:
            assert span.start == span.sequence.computed
            assert 0 < span.count < span.sequence.pending, "the last token comes after them"
        broken = [span for span in spans if span.count < min(span.sequence.pending - 1, TILE_ROWS)]
        assert len(broken) <= 1, "but for the oldest one, a part is all that is left or a tile"
        for call in plan.prompts:
            assert len(call) == 1 or not self.alone
            assert len(call) == 1 or all(span.count < TILE_ROWS for span in call)
            assert len(call) == 1 or all(span.sequence.layout is self.lanes for span in call)
            assert [span.sequence.seq_id for span in call] == sorted(span.sequence.seq_id for span in call)

    def _check_spans(self, plan: Plan) -> None:
        before = {id(span.sequence): span.count for call in plan.prompts for span in call}
        for span in plan.spans:
            assert span.count == 1
            assert span.start == span.sequence.computed + before.get(id(span.sequence), 0)
        places = [(span.sequence.layout is self.shared, span.sequence.seq_id) for span in plan.spans]
        assert places == sorted(set(places)), "by layout and sequence id, each once"
        assert [span for call in plan.calls for span in call] == plan.spans

    def _check_cells(self) -> None:
        expected: dict[int, dict[int, list[int]]] = {id(self.shared): {}, id(self.lanes): {}}
        for s in self.scheduler.running:
            assert s.computed < s.length, "the last token has no cell"
            expected[id(s.layout)][s.seq_id] = s.tokens[: s.computed].tolist()
        self._check_layout(self.shared, expected[id(self.shared)])
        assert self.shared._reserved.keys() == self.shared._lengths.keys()
        assert sum(self.shared._reserved.values()) <= self.shared.capacity
        if self.lanes:
            self._check_layout(self.lanes, expected[id(self.lanes)])
        cached = self.scheduler._prefix_cache
        assert cached.nbytes <= self.cached_tokens * TOKEN_BYTES
        for entry in cached:
            assert entry.cells.state.view(np.int32).tolist() == entry.tokens.tolist()

    def _check_layout(self, layout: Layout, expected: dict[int, list[int]]) -> None:
        ids = 1 if layout is self.shared and self.alone else self.slots
        left = layout._left if isinstance(layout, LaneLayout) else {}
        assert not left.keys() & expected.keys()
        held = {seq_id: tokens.tolist() for seq_id, tokens in left.items()} | expected
        assert layout.context.held() == {seq_id: tokens for seq_id, tokens in held.items() if tokens}
        assert layout._lengths == {seq_id: len(tokens) for seq_id, tokens in expected.items()}
        assert sorted([*layout._free, *expected]) == list(range(ids)), "each id is free or in use"
        assert layout.context.used - sum(map(len, left.values())) <= layout.used <= layout.capacity


def words(*runs: tuple[int, int]) -> list[int]:
    """A prompt of runs: (word, how often)."""
    return [word for word, count in runs for _ in range(count)]
