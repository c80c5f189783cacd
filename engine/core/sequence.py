"""One request on its way through the engine: its tokens, its cells, its text so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.base.errors import EngineError
from engine.base.request import Completion, Drafted, FinishReason, Request, Timing, TokenLogprob
from engine.llama.context import Hidden
from engine.llama.model import Model, Tokens
from engine.sampling.sampler import Choice, Constraint, Sampler
from engine.text.detokenizer import TextStream


class Sequence:
    """Mutable state of one request.

    tokens[:length] is prompt and output; the first `computed` of them have KV cells. A sequence
    with one token left to compute is decoding; with more it is in prefill.
    """

    def __init__(
        self, request: Request, prompt: Tokens, arrived: float, constraint: Constraint | None = None
    ) -> None:
        self.request = request
        self.params = request.sampling
        self.prompt_length = len(prompt)
        self.limit = len(prompt) + self.params.max_tokens
        self.tokens: Tokens = np.empty(self.limit, dtype=np.int32)
        self.tokens[: len(prompt)] = prompt
        self.length = len(prompt)
        self.computed = 0
        self.prefilled = 0  # tokens computed in the prefill context; their cells move when all are there
        self.order = -1  # of arrival, given by the scheduler
        self.seq_id = -1  # given at admission
        self.shared = 0  # longest prefix shared with another sequence, as taker or giver
        self.cached = 0  # prompt tokens not computed because another sequence had them
        self.hidden: Hidden | None = None  # [width], the state that gave the last emitted token
        self.failures = 0  # failed decodes it had a row in
        self.suspect = False  # runs alone until it has decoded once more, or to its end
        self.cancelled = False
        self.sampler = Sampler(self.params, prompt, constraint)
        self.text = TextStream(self.params.stop)
        self.finish: FinishReason | None = None
        self.sampled = 0
        self.arrived = arrived
        self.admitted: float | None = None
        self.first_token: float | None = None
        self.logprobs: list[TokenLogprob] = []
        self.steps = 0  # verified calls
        self.memory: dict[object, Any] = {}  # what draft sources keep of it, by whoever keeps it
        self._drafted: dict[str, Drafted] = {}

    @property
    def prompt(self) -> Tokens:
        return self.tokens[: self.prompt_length]

    @property
    def output(self) -> Tokens:
        return self.tokens[self.prompt_length : self.length]

    @property
    def pending(self) -> int:
        """Tokens still without KV cells."""
        return self.length - self.computed

    @property
    def unprefilled(self) -> int:
        """Tokens still to compute in the prefill context: all but the last, whose row gives an output."""
        return self.length - 1 - self.prefilled

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.limit - self.length

    def count_step(self, verdicts: Iterable[tuple[str, bool]]) -> None:
        """Note one verified call: the source of each of its draft tokens, and whether it stands."""
        self.steps += 1
        for source, accepted in verdicts:
            self._drafted[source] = self._drafted.get(source, Drafted(0, 0)) + Drafted(1, int(accepted))

    def emit(self, choice: Choice, model: Model) -> bool:
        """Take one chosen token; True when it ends the sequence."""
        self.sampled += 1
        token = choice.token
        ends = not self.params.ignore_eos and model.ends_generation(token)
        if ends or token in self.params.stop_token_ids:
            self.finish = FinishReason.STOP
            return True
        self.tokens[self.length] = token
        self.length += 1
        if choice.logprob is not None:
            top = tuple((i, model.piece(i, special=True), p) for i, p in choice.top)
            piece = model.piece(token, special=True)
            self.logprobs.append(TokenLogprob(token, piece, choice.logprob, top))
        if self.text.push(model.piece(token)):
            self.finish = FinishReason.STOP
        elif not self.remaining:
            self.finish = FinishReason.LENGTH
        return self.finish is not None

    def completion(self, now: float) -> Completion:
        """The result as it stands. Needs `finish`."""
        assert self.finish is not None
        first = self.first_token
        return Completion(
            request_id=self.request.id,
            text=self.text.text,
            tokens=tuple(self.output.tolist()),
            finish_reason=self.finish,
            prompt_tokens=self.prompt_length,
            cached_tokens=self.cached,
            completion_tokens=self.sampled,
            timing=Timing(
                queue_s=(self.admitted or now) - self.arrived,
                first_token_s=None if first is None else first - self.arrived,
                total_s=now - self.arrived,
            ),
            logprobs=None if self.params.logprobs is None else tuple(self.logprobs),
            steps=self.steps,
            drafted=dict(self._drafted),
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that has left the engine, with its completion or its error."""

    request_id: str
    outcome: Completion | EngineError
