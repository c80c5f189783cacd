"""Requests and completions: frozen dataclasses that validate themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from engine.base.errors import RequestRefused

MAX_TEMPERATURE = 2  # the OpenAI limit; beyond it answers are noise
MAX_TOP_LOGPROBS = 20  # the OpenAI limit; each one costs a row of the result
SEED_LIMIT = 2**63  # what fits in a signed 64-bit JSON integer


class FinishReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"  # end-of-generation token, stop token or stop string
    LENGTH = "length"  # max_tokens reached
    CANCELLED = "cancelled"  # cancelled by the caller; the text so far is kept
    EXPIRED = "expired"  # the deadline passed; the text so far is kept


class Decoding(StrEnum):
    """When tokens are drafted for a request."""

    AUTO = "auto"  # when it is measured to save time
    MEDUSA = "medusa"  # every step, by the heads, whether or not it pays: for comparison
    NORMAL = "normal"  # never


class Acceptance(StrEnum):
    """When a drafted token is accepted."""

    EXACT = "exact"  # if plain decoding would have emitted it too
    TYPICAL = "typical"  # if it is likely enough: faster at a high temperature, but lossy


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen, and when to stop.

    temperature 0 is greedy. top_k 0, top_p 1 and min_p 0 keep every token. Penalties follow the
    usual definitions: repetition divides positive and multiplies negative logits of tokens seen in
    prompt or output (CTRL, arXiv:1909.05858); presence and frequency subtract from tokens of the output.
    logprobs: None for none, else the number of alternatives reported per token (0-20); they are
    of the model's distribution before grammar, temperature and filters, after logit_bias and penalties.
    grammar: what the answer must match, as answer_grammar() makes it; None for any text. Tokens that it
    refuses have probability 0 before temperature and filters, and the end of generation is
    refused until the answer is complete. One that max_tokens or a stop string ended may not be: see
    Completion.complete. grammar_field: the field of the caller's request that refusals of the grammar name.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    acceptance: Acceptance = Acceptance.EXACT
    grammar: str | None = None
    grammar_field: str = "response_format"

    def __post_init__(self) -> None:
        checks = (
            ("max_tokens", self.max_tokens >= 1, "must be at least 1"),
            (
                "temperature",
                0 <= self.temperature <= MAX_TEMPERATURE,
                f"must be between 0 and {MAX_TEMPERATURE}",
            ),
            ("top_p", 0 < self.top_p <= 1, "must be above 0 and at most 1"),
            ("top_k", self.top_k >= 0, "must be 0 (off) or more"),
            ("min_p", 0 <= self.min_p <= 1, "must be between 0 and 1"),
            ("repetition_penalty", 0 < self.repetition_penalty <= 10, "must be above 0 and at most 10"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "must be between -2 and 2"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "must be between -2 and 2"),
            ("logit_bias", all(-100 <= b <= 100 for b in self.logit_bias.values()), "must be -100 to 100"),
            ("seed", 0 <= self.seed < SEED_LIMIT, f"must be between 0 and {SEED_LIMIT - 1}"),
            ("stop", all(self.stop), "must not hold an empty string"),
            (
                "logprobs",
                self.logprobs is None or 0 <= self.logprobs <= MAX_TOP_LOGPROBS,
                f"must be between 0 and {MAX_TOP_LOGPROBS}",
            ),
        )
        for name, holds, rule in checks:
            if not holds:
                raise RequestRefused(f"{name} {rule}", param=name)


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to complete.

    Exactly one of prompt and messages. A prompt is one user turn through the model's chat template,
    or the text as it stands with raw=True. messages and tools are as in OpenAI's chat completions, with
    the roles that the template knows. Lower priority values run first. deadline is in Unix
    seconds. The result of a request depends on its own fields alone, not on what shares its batch, but
    for near-ties that rounding tips where the engine is not batch_invariant.
    """

    id: str
    sampling: SamplingParams
    prompt: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    raw: bool = False
    priority: int = 0
    deadline: float | None = None
    decoding: Decoding = Decoding.AUTO
    tools: tuple[Mapping[str, Any], ...] = ()
    template_variables: Mapping[str, Any] = field(default_factory=dict)  # further ones, of the chat template

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise RequestRefused("give exactly one of prompt and messages", param="prompt")
        if self.raw and self.prompt is None:
            raise RequestRefused("raw needs a prompt, not messages", param="raw")
        if self.raw and self.tools:
            raise RequestRefused("a raw prompt takes no tools", param="tools")
        if self.prompt == "":
            raise RequestRefused("prompt is empty", param="prompt")
        if self.messages is not None and not self.messages:
            raise RequestRefused("messages is empty", param="messages")


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One emitted token with its natural-log probability and the best alternatives.

    piece: its bytes, which may be a part of a character.
    """

    token_id: int
    piece: bytes
    logprob: float
    top: tuple[tuple[int, bytes, float], ...] = ()  # (token id, piece, logprob), best first


class DraftSpan(NamedTuple):
    """Characters [start, end) of a text that come from one draft token; source: that of the draft."""

    start: int
    end: int
    source: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of a streamed answer.

    tokens: number of tokens that this piece completes. logprobs: of these tokens; empty unless requested. The
    last piece may have no text, only the tokens of a stop string. drafts: what of the text was drafted.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...]
    tokens: int
    drafts: tuple[DraftSpan, ...] = ()


OnText = Callable[[TextDelta], None]


@dataclass(frozen=True, slots=True)
class Progress:
    """How many of some requests run, and how many tokens these have got so far."""

    running: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: waiting for admission, from arrival to the first token, from arrival to the end."""

    queue_s: float
    first_token_s: float | None
    total_s: float


@dataclass(frozen=True, slots=True)
class Drafted:
    """Draft tokens of one source: verified by the model, and of these accepted."""

    verified: int
    accepted: int

    def __add__(self, other: Drafted) -> Drafted:
        return Drafted(self.verified + other.verified, self.accepted + other.accepted)


@dataclass(frozen=True, slots=True)
class Completion:
    """What a request produced. tokens are the emitted ids, the ending token excluded.

    end_token: the ending one, if there is one: an end-of-generation token or a stop token.
    """

    request_id: str
    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int  # prompt tokens whose cells were shared, not computed
    completion_tokens: int  # tokens sampled, the ending one included
    timing: Timing
    logprobs: tuple[TokenLogprob, ...] | None = None
    steps: int = 0  # decode calls that gave these tokens
    drafted: Mapping[str, Drafted] = field(default_factory=dict)  # by name of the draft source
    complete: bool | None = None  # whether the text is a whole answer; None without a grammar
    end_token: int | None = None

    @property
    def tokens_per_step(self) -> float:
        """1.0 in plain decoding; 0.0 when nothing was emitted."""
        return self.completion_tokens / self.steps if self.steps else 0.0
