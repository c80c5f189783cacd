"""The mutable state of one request in the engine: tokens, progress, text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.base.errors import EngineError
from engine.base.request import Completion, Drafted, FinishReason, Request, Timing, TokenLogprob
from engine.core.layouts import Layout
from engine.core.token_tree import Tree
from engine.llama.context import Hidden
from engine.llama.model import Model, Tokens
from engine.sampling.grammar import GrammarConstraint
from engine.sampling.sampler import SampledToken, Sampler
from engine.text.detokenizer import TextStream


class SequenceState:
    """One request that is waiting or running.

    tokens[:length] is prompt and output; between steps the first `computed` of them have KV cells. With one
    pending token the sequence is decoding, with more it is in prefill.
    """

    def __init__(
        self, request: Request, prompt: Tokens, arrived: float, constraint: GrammarConstraint | None = None
    ) -> None:
        self.request = request
        self.params = request.sampling
        self.prompt_length = len(prompt)
        self.limit = len(prompt) + self.params.max_tokens
        self.tokens: Tokens = np.empty(self.limit, dtype=np.int32)
        self.tokens[: len(prompt)] = prompt
        self.length = len(prompt)
        self.computed = 0
        self.order = -1  # arrival number, set by the scheduler
        self.layout: Layout | None = None  # where its cells are, set at admission
        self.seq_id = -1
        self.shared = 0  # length of the longest prefix shared with another sequence, in either direction
        self.cached = 0  # prompt tokens whose cells were shared instead of computed
        self.hidden: Hidden | None = (
            None  # [width], after the final norm: gave the last token; None if not asked for
        )
        self.failures = 0  # failed decodes since the last successful one in a batch
        self.quarantined = False  # after a failed decode: runs alone until it has decoded once
        self.cancelled = False
        self.constraint = constraint
        self.sampler = Sampler(self.params, prompt, constraint)
        self.text = TextStream(self.params.stop)
        self.finish: FinishReason | None = None
        self.sampled = 0
        self._end_token: int | None = None
        self._ended_itself = False  # by the model's own end, which a grammar allows where an answer is whole
        self.arrived = arrived
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None
        self.logprobs: list[TokenLogprob] = []
        self.steps = 0  # steps in which tokens were sampled
        self.source_state: dict[object, Any] = {}  # of draft sources, by the object that owns it
        self.expected: Tree = []  # the chain that draft sources go on from, in the step in progress
        self._drafted: dict[str, Drafted] = {}
        self.sources: dict[int, str] = {}  # of the output's tokens that were drafted, by their position

    @property
    def prompt(self) -> Tokens:
        return self.tokens[: self.prompt_length]

    @property
    def output(self) -> Tokens:
        return self.tokens[self.prompt_length : self.length]

    @property
    def pending(self) -> int:
        """Number of tokens without KV cells."""
        return self.length - self.computed

    @property
    def placed(self) -> tuple[Layout, int]:
        """Layout and sequence id of a running sequence."""
        assert self.layout is not None
        return self.layout, self.seq_id

    @property
    def remaining(self) -> int:
        """Number of tokens that may still be emitted."""
        return self.limit - self.length

    def count_step(self, drafted: Iterable[tuple[str, bool]]) -> None:
        """Count one step. drafted: for each verified draft token its source, and whether it was accepted."""
        self.steps += 1
        for source, accepted in drafted:
            self._drafted[source] = self._drafted.get(source, Drafted(0, 0)) + Drafted(1, int(accepted))

    def emit(self, sampled: SampledToken, model: Model) -> bool:
        """Append one sampled token, unless it only ends the text. At the end: sets `finish`, True."""
        self.sampled += 1
        token = sampled.token
        ends = model.ends_generation(token)
        if (ends and not self.params.ignore_eos) or token in self.params.stop_token_ids:
            self.finish = FinishReason.STOP
            self._end_token = token
            self._ended_itself = ends
            return True
        self.tokens[self.length] = token
        self.length += 1
        if sampled.logprob is not None:
            top = tuple((i, model.piece(i, special=True), p) for i, p in sampled.top)
            piece = model.piece(token, special=True)
            self.logprobs.append(TokenLogprob(token, piece, sampled.logprob, top))
        if self.text.push(model.piece(token)):
            self.finish = FinishReason.STOP
        elif not self.remaining:
            self.finish = FinishReason.LENGTH
        return self.finish is not None

    @property
    def _complete(self) -> bool | None:
        """After a stop the constraint may be ahead of the text, by what was accepted in the same step."""
        if self.params.grammar is None:
            return None
        if self.finish is FinishReason.STOP:
            return self._ended_itself
        return self.constraint is not None and self.constraint.complete

    def completion(self, now: float) -> Completion:
        """The result. Needs `finish`."""
        assert self.finish is not None
        first = self.first_token_at
        return Completion(
            request_id=self.request.id,
            text=self.text.text,
            tokens=tuple(self.output.tolist()),
            finish_reason=self.finish,
            prompt_tokens=self.prompt_length,
            cached_tokens=self.cached,
            completion_tokens=self.sampled,
            timing=Timing(
                queue_s=(self.admitted_at or now) - self.arrived,
                first_token_s=None if first is None else first - self.arrived,
                total_s=now - self.arrived,
            ),
            logprobs=None if self.params.logprobs is None else tuple(self.logprobs),
            steps=self.steps,
            drafted=dict(self._drafted),
            complete=self._complete,
            end_token=self._end_token,
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that has left the engine, with its completion or its error."""

    request_id: str
    outcome: Completion | EngineError
