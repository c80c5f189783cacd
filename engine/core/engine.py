"""The engine: each step advances every running request by at least one token, or by a part of its prompt."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from engine.base.config import DEFAULT_PREFIX_CACHE_TOKENS, EngineConfig
from engine.base.errors import DecodeFailed, EngineError, ModelLoadError
from engine.base.request import FinishReason, Request
from engine.core.acceptance import Accepted, accept_draft
from engine.core.draft_source import DraftSource, PlainDecoding
from engine.core.layout_setup import make_layouts
from engine.core.layouts import LANE_SLACK, SharedLayout
from engine.core.request_preparation import RequestPreparation
from engine.core.rows_builder import RowsBuilder
from engine.core.scheduler import FEW_ON_CPU, FEW_ON_GPU, Plan, Scheduler, Span
from engine.core.sequence import Ended, SequenceState
from engine.core.token_tree import EMPTY_DRAFT, Draft, Tree, fit, paths
from engine.llama.context import DecodeError, Outputs
from engine.llama.model import Model, Tokens, on_gpu
from engine.text import chat_templates

# Failed decodes of a request, with no successful batch in between, after which it runs alone to its end.
MAX_FAILURES = 3
MAX_WIDTH = LANE_SLACK - 1  # draft tokens of a sequence in a lane
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The served model and its limits, in tokens.

    measuring: it is not known yet how it runs fastest on this machine.
    """

    name: str
    path: str
    context_length: int
    slots: int
    kv_cells: int
    batch_invariant: bool
    quantization: str
    draft_sources: tuple[str, ...] = ()
    measuring: bool = False


@dataclass(slots=True)
class StepReport:
    """The results and counters of one step."""

    ended: list[Ended] = field(default_factory=list)
    running: int = 0  # sequences with rows
    rows: int = 0
    prompt_rows: int = 0  # except the last one of each prompt, which gives an output
    ready: int = 0  # sequences whose next token was sampled
    verified: int = 0  # draft tokens with a row
    accepted: int = 0  # draft tokens that were emitted
    emitted: int = 0  # sampled tokens, accepted draft tokens included
    decode_s: float = 0.0  # seconds in calls of the main context
    failed: bool = False


class Engine:
    """Continuous batching over one model. Not thread-safe: one thread calls add() and step()."""

    def __init__(self, config: EngineConfig, model: Model, draft_source: DraftSource | None = None) -> None:
        """model: the loaded weights of config.model, which engines may share. Raises ModelLoadError."""
        template = chat_templates.read(config.chat_template) if config.chat_template else None
        self._config = config
        self._limits = config.row_limits(on_gpu(config.gpu_layers))
        self._draft_source = draft_source or PlainDecoding()
        self._build_runtime(model)
        self.info = ModelInfo(
            name=model.name,
            path=model.path,
            context_length=min(config.kv_cells, model.trained_context),
            slots=self.layouts.slots,
            kv_cells=self.layouts.capacity,
            batch_invariant=config.batch_invariant,
            quantization=model.description,
        )
        self._preparation = RequestPreparation(model, template, self.info.context_length)

    def _build_runtime(self, model: Model) -> None:
        """Make layouts and scheduler anew for this model. Raises ModelLoadError."""
        self.model = model
        self.layouts = make_layouts(self._config, model, self._limits)
        self.scheduler = Scheduler(
            self.layouts.shared,
            self.layouts.lanes,
            slots=self.layouts.slots,
            chunk_rows=self._limits.prompts,
            prompts_together=not self._config.batch_invariant,
            sharing=self._config.prefix_sharing and model.can_share_prefixes,
            movable=self.layouts.movable,
            prefix_cache_bytes=DEFAULT_PREFIX_CACHE_TOKENS * self.layouts.cell_bytes
            if self._config.prefix_cache_bytes is None
            else self._config.prefix_cache_bytes,
            cell_bytes=self.layouts.cell_bytes,
        )
        self._share_cache()

    def exchange_weights(self, model: Model) -> None:
        """Go on with the same model in another number format, while idle. The prefix cache is lost.

        Raises ModelLoadError, and then goes on with the weights that it has.
        """
        assert self.idle, "cells of one format are of no use to the other"
        # Before the new ones are made: both at once may be more memory than there is.
        self.layouts.close()
        before = self.model
        try:
            self._build_runtime(model)
        except ModelLoadError:
            self._return_to(before)
            raise
        self._preparation.exchange_weights(model)
        self.info = replace(self.info, slots=self.layouts.slots, quantization=model.description)

    def _return_to(self, model: Model) -> None:
        try:
            self._build_runtime(model)
        except ModelLoadError as error:  # which would say that all is as it was
            raise EngineError(error.message) from error

    @property
    def draft_source(self) -> DraftSource:
        return self._draft_source

    def set_draft_source(self, source: DraftSource, names: tuple[str, ...] = ()) -> None:
        """Replace the draft source; only while the engine is idle. names: its sources, for `info`."""
        assert self.idle, "a step in progress belongs to the source that drafted for it"
        self._draft_source = source
        self._share_cache()
        self._preparation.draft_sources = names
        self.info = replace(self.info, draft_sources=names)

    def _share_cache(self) -> None:
        few = FEW_ON_GPU if on_gpu(self._config.gpu_layers) else FEW_ON_CPU
        self.scheduler.few = few if self._draft_source.trees else 0

    @property
    def idle(self) -> bool:
        return not self.scheduler.running and not self.scheduler.waiting

    def encode(self, request: Request) -> Tokens:
        """Prompt token ids. Thread-safe. Raises RequestRefused when the request can never run."""
        return self._preparation.encode(request)

    def prepare(
        self, request: Request, arrived: float, stopped: Callable[[], FinishReason | None] = lambda: None
    ) -> SequenceState:
        """See RequestPreparation.prepare(). Thread-safe. Raises RequestRefused."""
        return self._preparation.prepare(request, arrived, stopped)

    def close(self) -> None:
        """Stop the child process that compiles grammars on trial, if it runs."""
        self._preparation.close()

    def add(self, sequence: SequenceState) -> None:
        """Queue a sequence from prepare() whose `finish` is not set."""
        self.scheduler.add(sequence)

    def cancel(self, request_id: str) -> bool:
        """Mark a request; the next step ends it with the text so far. False for an unknown id."""
        for sequence in self.scheduler.sequences():
            if sequence.request.id == request_id:
                sequence.cancelled = True
                return True
        return False

    def step(self) -> StepReport:
        """Run one step: one decode call for all running requests, and calls for their prompts before it.

        schedule chooses the tokens to compute, draft proposes token trees below the last tokens, decode runs
        llama.cpp, accept samples and keeps the draft tokens that match, rewind frees the cells of the others,
        commit appends the sampled tokens and ends requests. After a failed decode nothing is committed.
        """
        report = StepReport(ended=self._end_cancelled_and_expired())
        plan = self.scheduler.schedule(time.monotonic())
        if not plan.sequences:
            return report
        ready = plan.ready  # before _advance(), which changes what is pending
        drafts = self._draft(plan)
        try:
            outputs = self._decode(plan, drafts, report)
        except DecodeError as error:
            return self._recover(plan, error, report)
        self._advance(plan)
        accepted = self._accept(ready, drafts, outputs)
        self._rewind(plan, accepted)
        return self._commit(accepted, report)

    def _end_cancelled_and_expired(self) -> list[Ended]:
        wall = time.time()
        ending = []
        for sequence in self.scheduler.sequences():
            deadline = sequence.request.deadline
            if sequence.cancelled:
                sequence.finish = FinishReason.CANCELLED
            elif deadline is not None and wall >= deadline:
                sequence.finish = FinishReason.EXPIRED
            if sequence.finish:
                ending.append(sequence)
        return [self._end(sequence) for sequence in ending]

    def _draft(self, plan: Plan) -> list[Draft]:
        """A draft for each ready sequence, cut to its remaining tokens and to what its layout can take.

        While both layouts have ready sequences, those of the layout with fewer get none.
        """
        ready = plan.ready
        if not ready:
            return []
        layout = Counter(sequence.placed[0] for sequence in ready).most_common(1)[0][0]
        asked = [sequence for sequence in ready if sequence.layout is layout]
        rows = sum(span.sequence.layout is layout for span in plan.spans)
        free = (self._limits.lanes if layout.equal_rows else self._limits.shared) - rows
        if layout.equal_rows:
            free = min(free, rows * MAX_WIDTH)
        trees = self._draft_source.draft(asked, free)
        if isinstance(layout, SharedLayout):
            drafts = self._trees(layout, asked, trees, free)
        else:
            width = free // rows
            drafts = [
                Draft.chain(tree, min(width, sequence.remaining - 1))
                for sequence, tree in zip(asked, trees, strict=True)
            ]
        of_asked = iter(drafts)
        return [next(of_asked) if sequence.layout is layout else EMPTY_DRAFT for sequence in ready]

    def _trees(
        self, layout: SharedLayout, asked: list[SequenceState], trees: list[Tree], free: int
    ) -> list[Draft]:
        leaf_ids = list(layout.leaf_ids)
        drafts = []
        for sequence, tree in zip(asked, trees, strict=True):
            if not tree:
                drafts.append(EMPTY_DRAFT)
                continue
            depth = sequence.remaining - 1  # the token sampled after the last draft token counts too
            # As many nodes, too: admission has reserved a cell for each token that may come, rejected or not.
            tree = fit(tree, nodes=min(free, depth), depth=depth, leaves=1 + len(leaf_ids))
            leaf_paths = paths(tree)
            branches = max(0, len(leaf_paths) - 1)
            drafts.append(Draft(tree, leaf_paths, leaf_ids[:branches]))
            del leaf_ids[:branches]
            free -= len(tree)
        return drafts

    def _decode(self, plan: Plan, drafts: list[Draft], report: StepReport) -> list[Outputs]:
        """Run the plan: calls for parts of prompts, then one for the last tokens with their drafts; where
        both layouts have sequences, one in each.

        Returns the outputs of each ready sequence, [1 + nodes, ..]: of its last token, then of its tree.
        """
        report.running, report.ready = len(plan.sequences), len(plan.ready)
        for spans in plan.prompts:
            self._call(spans, [], report)
            for span in spans:
                span.sequence.computed += span.count
            _drop_filling(spans)
        outputs: list[Outputs] = []
        calls = plan.calls
        for spans in calls:
            rows_before, seconds = report.rows, report.decode_s
            outputs += self._call(spans, drafts[len(outputs) :], report)
            if len(calls) == 1 and report.ready == len(spans):  # rows of prompts take other times
                self._draft_source.observe_latency(report.rows - rows_before, report.decode_s - seconds)
        return outputs

    def _call(self, spans: list[Span], drafts: list[Draft], report: StepReport) -> list[Outputs]:
        """One decode call in one layout. drafts: of its ready spans, in their order."""
        layout, rows = spans[0].sequence.placed[0], RowsBuilder()
        ready = iter(drafts)
        drafted = [next(ready) if span.ready else EMPTY_DRAFT for span in spans]
        counts = [span.count + len(draft.tree) for span, draft in zip(spans, drafted, strict=True)]
        width = max(counts) if layout.equal_rows else 0
        for span, draft, own in zip(spans, drafted, counts, strict=True):
            s, filling = span.sequence, max(0, width - own)
            if draft.leaf_ids:
                assert isinstance(layout, SharedLayout), "trees branch nowhere else"
                layout.branch(s.seq_id, draft.leaf_ids)
            layout.append(s.seq_id, own + filling)
            tokens = s.tokens[span.start : span.start + span.count].tolist()
            rows.add(s.seq_id, tokens, span.start, draft, output=span.ready, filling=filling)
        report.rows += len(rows)
        report.prompt_rows += sum(span.count - span.ready for span in spans)
        # for the heads' drafts of the next step
        hidden = any(span.ready for span in spans) and self._draft_source.needs_hidden
        began = time.perf_counter()
        try:
            outputs = layout.context.decode(rows.build(), hidden)
        finally:
            report.decode_s += time.perf_counter() - began
        sizes = [1 + len(draft.tree) for span, draft in zip(spans, drafted, strict=True) if span.ready]
        return outputs.split(sizes)

    def _advance(self, plan: Plan) -> None:
        """Count the tokens of the spans as computed, and end the count of failures of those not run alone."""
        for span in plan.spans:
            span.sequence.computed += span.count
            if len(plan.spans) > 1:
                span.sequence.failures = 0  # it decodes in a batch again

    def _accept(
        self, ready: list[SequenceState], drafts: list[Draft], outputs: list[Outputs]
    ) -> list[Accepted]:
        """Sample the next tokens of each ready sequence, as far down its tree as draft tokens match.

        Each sequence keeps the hidden state that gave its last token. One whose decoding has failed too often
        is quarantined: it runs alone.
        """
        all_accepted = []
        for sequence, draft, (logits, hidden) in zip(ready, drafts, outputs, strict=True):
            sequence.quarantined = sequence.failures >= MAX_FAILURES
            accepted = accept_draft(sequence, draft, logits)
            all_accepted.append(accepted)
            sequence.hidden = None if hidden is None else hidden[accepted.last_row].copy()
        return all_accepted

    def _rewind(self, plan: Plan, all_accepted: Iterable[Accepted]) -> None:
        """Free the cells of rejected draft tokens, and tell the draft source what was accepted.

        The accepted ones count as computed: until _commit() appends them, computed may exceed length.
        """
        for one in all_accepted:
            if one.draft.tree:
                layout, seq_id = one.sequence.placed
                layout.rewind(seq_id, one.sequence.computed, one.nodes, one.draft.paths)
                one.sequence.computed += len(one.nodes)
                self._draft_source.observe(one.sequence, one.draft.tree, one.nodes)
        _drop_filling(plan.spans)

    def _commit(self, all_accepted: Iterable[Accepted], report: StepReport) -> StepReport:
        """Emit the sampled tokens, up to the one that ends the request, and count them."""
        now = time.monotonic()
        for one in all_accepted:
            emitted, ended = 0, one.error is not None
            position = one.sequence.length - one.sequence.prompt_length
            for token in one.sampled:
                ended = one.sequence.emit(token, self.model)
                emitted += 1
                if ended:
                    break
            one.sequence.first_token_at = one.sequence.first_token_at or (now if emitted else None)
            accepted = one.nodes[:emitted]  # not those after the token that ended the request
            for offset, node in enumerate(accepted):
                one.sequence.sources[position + offset] = one.draft.tree[node].source
            one.sequence.count_step((node.source, i in accepted) for i, node in enumerate(one.draft.tree))
            report.verified += len(one.draft.tree)
            report.accepted += len(accepted)
            report.emitted += emitted
            if ended:
                report.ended.append(self._end(one.sequence, one.error))
        return report

    def _recover(self, plan: Plan, error: DecodeError, report: StepReport) -> StepReport:
        """After a failed decode: drop the cells of all its sequences, and recompute each of them alone.

        Only a sequence whose decode also fails alone ends with an error. One that has failed MAX_FAILURES
        times in batches runs alone to its end, so that it fails no other request.
        """
        affected = plan.sequences
        log.warning("%s with %d requests in the batch; running them one by one", error.message, len(affected))
        report.failed = True
        for sequence in affected:
            ran_alone = sequence.quarantined
            self.scheduler.recompute(sequence)
            if ran_alone:
                report.ended.append(self._end(sequence, DecodeFailed(error.message)))
        return report

    def _end(self, sequence: SequenceState, error: EngineError | None = None) -> Ended:
        self.scheduler.finish(sequence)
        return Ended(sequence.request.id, error or sequence.completion(time.monotonic()))


def _drop_filling(spans: list[Span]) -> None:
    """Free the cells of rows that gave a lane as many as the others."""
    for span in spans:
        layout, seq_id = span.sequence.placed
        layout.truncate(seq_id, span.sequence.computed)
