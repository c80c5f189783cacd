"""Makes sequences of requests, and refuses the requests that can never run."""

from __future__ import annotations

from collections.abc import Callable

from engine.base.errors import RequestRefused
from engine.base.request import Decoding, FinishReason, Request
from engine.core.sequence import SequenceState
from engine.llama.model import Model, Tokens
from engine.sampling.grammar import Grammars
from engine.text.prompt_encoder import PromptEncoder


class _Stopped(Exception):
    def __init__(self, reason: FinishReason) -> None:
        super().__init__(reason)
        self.reason = reason


class RequestPreparation:
    """Validates requests for one model. draft_sources: the names of those that draft for it."""

    def __init__(self, model: Model, template: str | None, context_length: int) -> None:
        self.draft_sources: tuple[str, ...] = ()
        self._model = model
        self._context_length = context_length
        self._encoder = PromptEncoder(model, template, context_length)
        self._grammars = Grammars(model)

    def exchange_weights(self, model: Model) -> None:
        """Go on with the same model in another number format."""
        self._model = self._encoder.model = self._grammars.model = model

    def encode(self, request: Request) -> Tokens:
        """Prompt token ids. Thread-safe. Raises RequestRefused when the request can never run."""
        prompt = self._encoder.encode(request)
        context, wanted = self._context_length, request.sampling.max_tokens
        if len(prompt) + wanted > context:
            raise RequestRefused(
                f"the prompt has {len(prompt)} tokens and max_tokens is {wanted}: "
                f"together over the context of {context}",
                code="context_length_exceeded",
                param="prompt" if len(prompt) >= context else "max_tokens",
            )
        if request.decoding is Decoding.MEDUSA and "medusa" not in self.draft_sources:
            raise RequestRefused(
                'decoding "medusa" needs draft heads, and none are loaded for this model',
                code="no_heads",
                param="decoding",
            )
        unknown = [t for t in request.sampling.logit_bias if not 0 <= t < self._model.vocab_size]
        if unknown:
            raise RequestRefused(
                f"logit_bias names token {unknown[0]}; the vocabulary has {self._model.vocab_size}",
                param="logit_bias",
            )
        return prompt

    def prepare(
        self, request: Request, arrived: float, stopped: Callable[[], FinishReason | None] = lambda: None
    ) -> SequenceState:
        """Validate a request, tokenize its prompt and compile its grammar. Thread-safe.

        arrived: in seconds of time.monotonic(). stopped: called several times a second, on this thread, while
        the grammar compiles; if it returns a reason, the returned sequence has already finished with it, and
        its exceptions propagate. Raises RequestRefused.
        """
        prompt = self.encode(request)

        def check() -> None:
            if reason := stopped():
                raise _Stopped(reason)

        try:
            sampling = request.sampling
            constraint = self._grammars.begin(sampling.grammar, check, sampling.grammar_field)
        except _Stopped as stop:
            sequence = SequenceState(request, prompt, arrived)
            sequence.finish = stop.reason
            return sequence
        return SequenceState(request, prompt, arrived, constraint)

    def close(self) -> None:
        """Stop the child process that compiles grammars on trial, if it runs."""
        self._grammars.close()
