"""The engine: each step advances every running request by at least one token, or by a part of its prompt."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from engine.base.config import CPU_PREFILL_CELLS, EngineConfig
from engine.base.errors import DecodeFailed, EngineError, ModelLoadError
from engine.base.request import FinishReason, Request
from engine.core.acceptance import Accepted, accept_draft
from engine.core.draft_source import DraftSource, PlainDecoding
from engine.core.kv_cache import KVCache
from engine.core.prefill_context import PrefillContext
from engine.core.request_preparation import RequestPreparation
from engine.core.rows_builder import RowsBuilder
from engine.core.scheduler import Plan, Scheduler, Span
from engine.core.sequence import Ended, SequenceState
from engine.core.token_tree import EMPTY_DRAFT, Draft, fit, paths
from engine.llama.context import Context, DecodeError, Outputs
from engine.llama.model import Model, Tokens, on_gpu
from engine.text import chat_templates

# Failed decodes of a request, with no successful batch in between, after which it runs alone to its end.
MAX_FAILURES = 3
LEAF_IDS = 16  # sequence ids for the leaves of token trees, all requests together
PREFIX_CACHE_SEQS = 16  # sequence ids for cached prefixes; llama.cpp's output buffer grows with every id
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
    """Continuous batching over one model. Not thread-safe: one thread calls add() and step().

    max_rows: rows of one decode call at most, drafts included. leaf_ids: sequence ids for the leaves of token
    trees.
    """

    def __init__(self, config: EngineConfig, model: Model, draft_source: DraftSource | None = None) -> None:
        """model: the loaded weights of config.model, which engines may share. Raises ModelLoadError."""
        template = chat_templates.read(config.chat_template) if config.chat_template else None
        self._config = config
        self.max_rows, self._chunk_rows = config.rows(on_gpu(config.gpu_layers))
        self.leaf_ids = range(config.slots + PREFIX_CACHE_SEQS, config.slots + PREFIX_CACHE_SEQS + LEAF_IDS)
        self.info = ModelInfo(
            name=model.name,
            path=model.path,
            context_length=min(config.kv_cells, model.trained_context),
            slots=config.slots,
            kv_cells=config.kv_cells,
            batch_invariant=config.batch_invariant,
            quantization=model.description,
        )
        self._build_runtime(model)
        self._preparation = RequestPreparation(model, template, self.info.context_length)
        self._draft_source = draft_source or PlainDecoding()

    def _build_runtime(self, model: Model) -> None:
        """Make contexts, cache and scheduler anew for this model. Raises ModelLoadError."""
        config = self._config
        self.model = model
        self.context = Context(
            model,
            cells=config.kv_cells,
            seq_ids=config.slots + PREFIX_CACHE_SEQS + LEAF_IDS,
            max_rows=max(self.max_rows, self._chunk_rows),
            threads=config.threads,
            kv_type=config.kv_type,
            companion_row=config.batch_invariant,
        )
        self.cache = KVCache(self.context, config.kv_cells, ordered=config.batch_invariant)
        self.prefill_context = self._new_prefill_context()
        self.scheduler = Scheduler(
            self.cache,
            slots=config.slots,
            max_rows=self.max_rows,
            chunk_rows=self._chunk_rows,
            prefill_cells=self.prefill_context.cells if self.prefill_context else 0,
            busy=config.busy(on_gpu(config.gpu_layers)),
            sharing=config.prefix_sharing and self.model.can_share_prefixes,
            prefix_cache_seqs=PREFIX_CACHE_SEQS,
            prefix_cache_cells=config.prefix_cache_cells,
        )

    def _new_prefill_context(self) -> PrefillContext | None:
        config = self._config
        if not self._chunk_rows or not self.model.can_share_prefixes:
            return None
        context = Context(
            self.model,
            cells=min(config.kv_cells, CPU_PREFILL_CELLS),
            seq_ids=1,
            max_rows=self._chunk_rows,
            threads=config.threads,
            kv_type=config.kv_type,
        )
        return PrefillContext(context, self.context, self.cache)

    def exchange_weights(self, model: Model) -> None:
        """Go on with the same model in another number format, while idle. The prefix cache is lost.

        Raises ModelLoadError, and then goes on with the weights that it has.
        """
        assert self.idle, "cells of one format are of no use to the other"
        # Before the new ones are made: both at once may be more memory than there is.
        self.context.close()
        if self.prefill_context:
            self.prefill_context.close()
        before = self.model
        try:
            self._build_runtime(model)
        except ModelLoadError:
            self.context.close()
            self._return_to(before)
            raise
        self._preparation.exchange_weights(model)
        self.info = replace(self.info, quantization=model.description)

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
        self._preparation.draft_sources = names
        self.info = replace(self.info, draft_sources=names)

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
        """Run one step: one decode call for all running requests, and calls for long prompts apart.

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
        self._rewind(accepted)
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
        """One draft for each ready sequence, cut to its remaining tokens, the free rows and free leaf ids."""
        budget = self.max_rows - sum(span.count for span in plan.spans)
        # In ordered mode the cells of rejected drafts stay occupied, and admission has not counted them.
        if self.cache.ordered:
            budget = min(budget, self.scheduler.spare_cells)
        leaf_ids = list(self.leaf_ids)
        drafts = []
        for sequence, tree in zip(plan.ready, self._draft_source.draft(plan.ready, budget), strict=True):
            if not tree:
                drafts.append(EMPTY_DRAFT)
                continue
            depth = sequence.remaining - 1  # the token sampled after the last draft token counts too
            # As many nodes, too: admission has reserved a cell for each token that may come, rejected or not.
            tree = fit(tree, nodes=min(budget, depth), depth=depth, leaves=1 + len(leaf_ids))
            leaf_paths = paths(tree)
            branches = max(0, len(leaf_paths) - 1)
            drafts.append(Draft(tree, leaf_paths, leaf_ids[:branches]))
            del leaf_ids[:branches]
            budget -= len(tree)
        return drafts

    def _decode(self, plan: Plan, drafts: list[Draft], report: StepReport) -> Outputs:
        """Run the plan: prefill calls, the chunk's call, then one call for all spans with their drafts.

        Returns the outputs of that call, [rows, ..]: for each ready sequence one row for its last token, then
        one for each node of its tree.
        """
        report.running, report.ready = len(plan.sequences), len(plan.ready)
        every = [*plan.prefill, *plan.spans, *([plan.chunk] if plan.chunk else [])]
        report.prompt_rows = sum(span.count for span in every) - report.ready
        for span in plan.prefill:
            assert self.prefill_context, "the scheduler plans prefill only where the context exists"
            self.prefill_context.run(span)
            report.rows += span.count
        if plan.chunk:
            self._call([plan.chunk], [], report)
            plan.chunk.sequence.computed += plan.chunk.count
        if not plan.spans:
            return Outputs(np.empty((0, self.model.vocab_size), dtype=np.float32), None)
        rows_before, seconds = report.rows, report.decode_s
        outputs = self._call(plan.spans, drafts, report)
        if len(plan.ready) == len(plan.spans):  # rows of prompts take other times
            self._draft_source.observe_latency(report.rows - rows_before, report.decode_s - seconds)
        return outputs

    def _call(self, spans: list[Span], drafts: list[Draft], report: StepReport) -> Outputs:
        """One decode call. drafts: of the ready spans, in their order."""
        rows = RowsBuilder()
        next_draft = iter(drafts)
        for span in spans:
            s, draft = span.sequence, next(next_draft) if span.ready else EMPTY_DRAFT
            if draft.leaf_ids:
                self.cache.branch(s.seq_id, draft.leaf_ids)
            self.cache.append(s.seq_id, span.count + len(draft.tree))
            tokens = s.tokens[s.computed : s.computed + span.count].tolist()
            rows.add(s.seq_id, tokens, s.computed, draft, output=span.ready)
        report.rows += len(rows)
        # for the heads' drafts of the next step
        hidden = any(span.ready for span in spans) and self._draft_source.needs_hidden
        began = time.perf_counter()
        try:
            return self.context.decode(rows.build(), hidden)
        finally:
            report.decode_s += time.perf_counter() - began

    def _advance(self, plan: Plan) -> None:
        """Count the tokens of the spans as computed, and end the count of failures of those not run alone."""
        for span in plan.spans:
            span.sequence.computed += span.count
            if len(plan.spans) > 1:
                span.sequence.failures = 0  # it decodes in a batch again

    def _accept(self, ready: list[SequenceState], drafts: list[Draft], outputs: Outputs) -> list[Accepted]:
        """Sample the next tokens of each ready sequence, as far down its tree as draft tokens match.

        Each sequence keeps the hidden state that gave its last token. One whose decoding has failed too often
        is quarantined: it runs alone.
        """
        first, all_accepted = 0, []
        for sequence, draft in zip(ready, drafts, strict=True):
            sequence.quarantined = sequence.failures >= MAX_FAILURES
            of_sequence = slice(first, first + 1 + len(draft.tree))
            first = of_sequence.stop
            accepted = accept_draft(sequence, draft, outputs.logits[of_sequence])
            all_accepted.append(accepted)
            hidden = outputs.hidden
            sequence.hidden = None if hidden is None else hidden[of_sequence][accepted.last_row].copy()
        return all_accepted

    def _rewind(self, all_accepted: Iterable[Accepted]) -> None:
        """Free the cells of rejected draft tokens, and tell the draft source what was accepted.

        The accepted ones count as computed: until _commit() appends them, computed may exceed length.
        """
        for one in all_accepted:
            if one.draft.tree:
                self.cache.rewind(one.sequence.seq_id, one.sequence.computed, one.nodes, one.draft.paths)
                one.sequence.computed += len(one.nodes)
                self._draft_source.observe(one.sequence, one.draft.tree, one.nodes)

    def _commit(self, all_accepted: Iterable[Accepted], report: StepReport) -> StepReport:
        """Emit the sampled tokens, up to the one that ends the request, and count them."""
        now = time.monotonic()
        for one in all_accepted:
            emitted, ended = 0, one.error is not None
            for token in one.sampled:
                ended = one.sequence.emit(token, self.model)
                emitted += 1
                if ended:
                    break
            one.sequence.first_token_at = one.sequence.first_token_at or (now if emitted else None)
            accepted = one.nodes[:emitted]  # not those after the token that ended the request
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
