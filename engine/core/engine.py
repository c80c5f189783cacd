"""The engine: one step runs every admitted request one decode call further."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from engine.base.config import CPU_PREFILL_CELLS, EngineConfig
from engine.base.errors import DecodeFailed, EngineError, ModelLoadError, RequestRefused
from engine.base.request import Decoding, FinishReason, Request
from engine.core.batch_builder import RowsBuilder
from engine.core.draft_source import DraftSource, NoDraft
from engine.core.kv_cache import KVCache
from engine.core.prefill_context import PrefillContext
from engine.core.scheduler import Plan, Scheduler, Span
from engine.core.sequence import Ended, Sequence
from engine.core.token_tree import NO_DRAFT, Draft, fit, paths
from engine.core.verification import sample_and_match
from engine.llama.context import Context, DecodeError, Logits, Outputs
from engine.llama.model import Model, Tokens, on_gpu
from engine.sampling.grammar import Grammars
from engine.sampling.sampler import Choice
from engine.text import chat_templates
from engine.text.prompt_encoder import PromptEncoder

MAX_FAILURES = 3  # failed decodes, with none in company that went well, until a request runs alone to its end
LEAF_IDS = 16  # sequence ids for the leaves of token trees, all requests together
KEPT_IDS = 16  # sequence ids for kept prompts; llama.cpp's output buffer grows with every id
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is being served, and with which limits (tokens).

    measuring: it is not known yet what runs fastest on this machine.
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
    """What one step did: for the caller to deliver, measure and log."""

    ended: list[Ended] = field(default_factory=list)
    running: int = 0  # sequences with rows
    rows: int = 0
    prefilled: int = 0  # rows of prompts, but for those that gave an output
    ready: int = 0  # sequences that emitted
    verified: int = 0  # draft tokens
    accepted: int = 0
    emitted: int = 0
    decode_s: float = 0.0  # seconds in llama.cpp
    failed: bool = False


@dataclass(slots=True)
class Verified:
    """One ready span after acceptance: the tokens to commit, or the error that ends it."""

    sequence: Sequence
    draft: Draft
    choices: list[Choice] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)  # nodes of the tree
    error: EngineError | None = None

    @property
    def last_row(self) -> int:
        """The row that gave the last choice: 0 is the sequence's own last token, then come the nodes."""
        return self.accepted[-1] + 1 if self.accepted else 0


class _Unwanted(Exception):
    def __init__(self, reason: FinishReason) -> None:
        super().__init__(reason)
        self.reason = reason


class Engine:
    """Continuous batching over one model. Not thread-safe: one thread calls add() and step().

    max_rows: of a decode call. leaf_ids: sequence ids for the leaves of token trees.
    """

    def __init__(self, config: EngineConfig, model: Model, draft_source: DraftSource | None = None) -> None:
        """model: the weights of config.model; engines may share them. Raises ModelLoadError."""
        template = chat_templates.read(config.chat_template) if config.chat_template else None
        self._config = config
        self.max_rows, self._chunk_rows = config.rows(on_gpu(config.gpu_layers))
        self.leaf_ids = range(config.slots + KEPT_IDS, config.slots + KEPT_IDS + LEAF_IDS)
        self.info = ModelInfo(
            name=model.name,
            path=model.path,
            context_length=min(config.kv_cells, model.trained_context),
            slots=config.slots,
            kv_cells=config.kv_cells,
            batch_invariant=config.batch_invariant,
            quantization=model.description,
        )
        self._run_with(model)
        self._encoder = PromptEncoder(model, template, self.info.context_length)
        self._grammars = Grammars(model)
        self._draft_source = draft_source or NoDraft()

    def _run_with(self, model: Model) -> None:
        """An empty cache for this model. Raises ModelLoadError."""
        config = self._config
        self.model = model
        self.context = Context(
            model,
            cells=config.kv_cells,
            seq_ids=config.slots + KEPT_IDS + LEAF_IDS,
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
            kept_ids=KEPT_IDS,
            kept_cells=config.prefix_cache_cells,
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
        """Go on with the same model in another number format, while nothing runs. Kept prompts are lost.

        Raises ModelLoadError, and then goes on with the weights that it has.
        """
        assert self.idle, "cells of one format are of no use to the other"
        # Before the new ones are made: both at once may be more memory than there is.
        self.context.close()
        if self.prefill_context:
            self.prefill_context.close()
        before = self.model
        try:
            self._run_with(model)
        except ModelLoadError:
            self.context.close()
            self._return_to(before)
            raise
        self._encoder.model = self._grammars.model = model
        self.info = replace(self.info, quantization=model.description)

    def _return_to(self, model: Model) -> None:
        try:
            self._run_with(model)
        except ModelLoadError as error:  # which would say that all is as it was
            raise EngineError(error.message) from error

    @property
    def draft_source(self) -> DraftSource:
        return self._draft_source

    def draft_with(self, source: DraftSource, names: tuple[str, ...] = ()) -> None:
        """Take another draft source, while nothing runs. names: of those that it draws from."""
        assert self.idle, "trees under way belong to the source that drafted them"
        self._draft_source = source
        self.info = replace(self.info, draft_sources=names)

    @property
    def idle(self) -> bool:
        return not self.scheduler.running and not self.scheduler.waiting

    def encode(self, request: Request) -> Tokens:
        """Prompt token ids, from any thread. Raises RequestRefused when it can never run."""
        prompt = self._encoder.encode(request)
        context, wanted = self.info.context_length, request.sampling.max_tokens
        if len(prompt) + wanted > context:
            raise RequestRefused(
                f"the prompt has {len(prompt)} tokens and max_tokens is {wanted}: "
                f"together over the context of {context}",
                code="context_length_exceeded",
                param="prompt" if len(prompt) >= context else "max_tokens",
            )
        if request.decoding is Decoding.MEDUSA and "medusa" not in self.info.draft_sources:
            raise RequestRefused(
                'decoding "medusa" needs Medusa heads, and none are loaded for this model',
                code="no_heads",
                param="decoding",
            )
        unknown = [t for t in request.sampling.logit_bias if not 0 <= t < self.model.vocab_size]
        if unknown:
            raise RequestRefused(
                f"logit_bias names token {unknown[0]}; the vocabulary has {self.model.vocab_size}",
                param="logit_bias",
            )
        return prompt

    def prepare(
        self, request: Request, arrived: float, stopped: Callable[[], FinishReason | None] = lambda: None
    ) -> Sequence:
        """All of a request that may be refused, from any thread; arrived is in time.monotonic() seconds.

        stopped is called several times a second while the grammar compiles, from this thread; when it gives
        a reason, the sequence has ended with it. What it raises is raised. Raises RequestRefused.
        """
        prompt = self.encode(request)

        def check() -> None:
            if reason := stopped():
                raise _Unwanted(reason)

        try:
            constraint = self._grammars.begin(request.sampling.grammar, check)
        except _Unwanted as unwanted:
            sequence = Sequence(request, prompt, arrived)
            sequence.finish = unwanted.reason
            return sequence
        return Sequence(request, prompt, arrived, constraint)

    def close(self) -> None:
        """End the child process that tries grammars, if there is one."""
        self._grammars.close()

    def add(self, sequence: Sequence) -> None:
        """Queue a prepared request that has not ended."""
        self.scheduler.add(sequence)

    def cancel(self, request_id: str) -> bool:
        """Mark a request; the next step ends it with the text so far. False when it is not here."""
        for sequence in self.scheduler.sequences():
            if sequence.request.id == request_id:
                sequence.cancelled = True
                return True
        return False

    def step(self) -> StepReport:
        """Run every admitted request one decode call further."""
        report = StepReport(ended=self._end_cancelled_and_expired())
        plan = self.scheduler.schedule(time.monotonic())
        if not plan.sequences:
            return report
        drafts = self._draft(plan)
        try:
            outputs = self._decode(plan, drafts, report)
        except DecodeError as error:
            return self._recover(plan, error, report)
        verified = self._accept(plan, drafts, outputs)
        self._rewind(verified)
        return self._commit(verified, report)

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
        """Trees of the ready sequences, cut to what may be emitted and to the room left for them."""
        room = self.max_rows - sum(span.count for span in plan.spans)
        if self.cache.ordered:  # a refused draft's cell stays occupied, which no admission has counted
            room = min(room, self.scheduler.spare_cells)
        leaf_ids = list(self.leaf_ids)
        drafts = []
        for sequence, tree in zip(plan.ready, self._draft_source.draft(plan.ready, room), strict=True):
            if not tree:
                drafts.append(NO_DRAFT)
                continue
            left = sequence.remaining - 1
            tree = fit(tree, nodes=min(room, left), depth=left, leaves=1 + len(leaf_ids))
            ways = paths(tree)
            branches = max(0, len(ways) - 1)
            drafts.append(Draft(tree, ways, leaf_ids[:branches]))
            del leaf_ids[:branches]
            room -= len(tree)
        return drafts

    def _decode(self, plan: Plan, drafts: list[Draft], report: StepReport) -> Outputs:
        """Prompts apart in their own calls, then all spans in one; ready spans and drafts give logits."""
        report.running, report.ready = len(plan.sequences), len(plan.ready)
        every = [*plan.prefill, *plan.spans, *([plan.chunk] if plan.chunk else [])]
        report.prefilled = sum(span.count for span in every) - report.ready
        for span in plan.prefill:
            assert self.prefill_context, "the scheduler plans for it only where there is one"
            self.prefill_context.run(span)
            report.rows += span.count
        if plan.chunk:
            self._call([plan.chunk], [], report)
            plan.chunk.sequence.computed += plan.chunk.count
        if not plan.spans:
            return Outputs(np.empty((0, self.model.vocab_size), dtype=np.float32), None)
        rows, seconds = report.rows, report.decode_s
        outputs = self._call(plan.spans, drafts, report)
        if len(plan.ready) == len(plan.spans):
            self._draft_source.timed(report.rows - rows, report.decode_s - seconds)
        return outputs

    def _call(self, spans: list[Span], drafts: list[Draft], report: StepReport) -> Outputs:
        rows = RowsBuilder()
        next_draft = iter(drafts)
        for span in spans:
            s, draft = span.sequence, next(next_draft) if span.ready else NO_DRAFT
            if draft.leaf_ids:
                self.cache.branch(s.seq_id, draft.leaf_ids)
            self.cache.append(s.seq_id, span.count + len(draft.tree))
            tokens = s.tokens[s.computed : s.computed + span.count].tolist()
            rows.add(s.seq_id, tokens, s.computed, draft, output=span.ready)
        report.rows += len(rows)
        hidden = bool(drafts) and self._draft_source.needs_hidden
        began = time.perf_counter()
        try:
            return self.context.decode(rows.build(), hidden)
        finally:
            report.decode_s += time.perf_counter() - began

    def _accept(self, plan: Plan, drafts: list[Draft], outputs: Outputs) -> list[Verified]:
        ready, first = plan.ready, 0
        for span in plan.spans:
            span.sequence.computed += span.count
            if len(plan.spans) > 1:
                span.sequence.failures = 0  # its company does it no harm
        verified = []
        for sequence, draft in zip(ready, drafts, strict=True):
            sequence.suspect = sequence.failures >= MAX_FAILURES
            rows = slice(first, first + 1 + len(draft.tree))
            first = rows.stop
            verified.append(_verify(sequence, draft, outputs.logits[rows]))
            hidden = outputs.hidden
            sequence.hidden = None if hidden is None else hidden[rows][verified[-1].last_row].copy()
        return verified

    def _rewind(self, verified: Iterable[Verified]) -> None:
        """Drop the cells of refused nodes."""
        for v in verified:
            if v.draft.tree:
                self.cache.commit(v.sequence.seq_id, v.sequence.computed, v.accepted, v.draft.paths)
                v.sequence.computed += len(v.accepted)
                self._draft_source.observe(v.sequence, v.draft.tree, v.accepted)

    def _commit(self, verified: Iterable[Verified], report: StepReport) -> StepReport:
        now = time.monotonic()
        for v in verified:
            emitted, ended = 0, v.error is not None
            for choice in v.choices:
                ended = v.sequence.emit(choice, self.model)
                emitted += 1
                if ended:
                    break
            v.sequence.first_token = v.sequence.first_token or (now if emitted else None)
            accepted = v.accepted[:emitted]  # what would have stood after the end, does not
            v.sequence.count_step((node.source, i in accepted) for i, node in enumerate(v.draft.tree))
            report.verified += len(v.draft.tree)
            report.accepted += len(accepted)
            report.emitted += emitted
            if ended:
                report.ended.append(self._end(v.sequence, v.error))
        return report

    def _recover(self, plan: Plan, error: DecodeError, report: StepReport) -> StepReport:
        """After a failed decode: forget the cells of all its sequences, then run each alone.

        Only a sequence that then fails by itself ends in an error; one that fails often in company stays
        alone, so that it cannot take others with it.
        """
        affected = plan.sequences
        log.warning("%s with %d requests in the batch; running them one by one", error.message, len(affected))
        report.failed = True
        for sequence in affected:
            alone_again = sequence.suspect
            self.scheduler.recompute(sequence)
            if alone_again:
                report.ended.append(self._end(sequence, DecodeFailed(error.message)))
        return report

    def _end(self, sequence: Sequence, error: EngineError | None = None) -> Ended:
        self.scheduler.retire(sequence)
        return Ended(sequence.request.id, error or sequence.completion(time.monotonic()))


def _verify(sequence: Sequence, draft: Draft, rows: Logits) -> Verified:
    """rows: logits after the last token, then after each node of the tree."""
    done = len(sequence.output)
    try:
        choices, accepted = sample_and_match(
            draft.tree,
            lambda node, offset, candidates: sequence.sampler.next(rows[node + 1], done + offset, candidates),
        )
    except EngineError as error:
        return Verified(sequence, draft, error=error)
    return Verified(sequence, draft, choices, accepted)
