"""Structured output: from a response_format to a mask of the tokens that may come next.

llguidance does the work. It supports more of JSON Schema than llama.cpp's grammars, refuses the rest, and
limits each step. Compiling has no limit of its own, so it is tried in a child process first (see
engine/sampling/grammar_trials.py), and no schema can block the engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from engine.base.errors import DecodeFailed, EngineError, RequestRefused
from engine.llama.model import Model
from engine.sampling.closed_objects import close_objects
from engine.sampling.exact_numbers import keep_exact
from engine.sampling.grammar_process import (
    STACK_BYTES,
    TokenTexts,
    compiled,
    looking_ahead,
    lower_priority,
    new_tokenizer,
    start_thread,
)
from engine.sampling.grammar_trials import POLL_S, TOO_COMPLEX, Check, GrammarTrials, Verdict

MAX_SCHEMA = 256 * 1024  # characters
LONGEST_NUMBER = 32  # characters, where the schema does not want more: a double has at most 24
# One form, so that whitespace is nobody's choice: that of json.dumps. It takes 1% more tokens than no blanks,
# but models expect it, and so write it in tokens that can be guessed (docs/explanation/speculation.md).
FORM = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Characters of a grammar that is asked what it forces: that takes 0.5 ms for 1,000 characters of a constant.
MOST_AHEAD = 16 * 1024
RESPONSE_FORMAT = "response_format"
NO_TOKEN = "NoExtension"  # as llguidance's errors begin where nothing may come next

Mask = NDArray[np.bool_]  # [vocabulary], what may come next


def response_grammar(response_format: Mapping[str, Any] | None) -> str | None:
    """A grammar for a response_format as in OpenAI's chat completions, for llguidance; None for any text.

    Raises RequestRefused, for a schema that is too large with code invalid_schema.
    """
    kind = None if response_format is None else response_format.get("type")
    if response_format is None or kind == "text":
        return None
    if kind == "json_object":
        return JSON_OBJECT
    if kind != "json_schema":
        raise RequestRefused(
            "response_format must have the type text, json_object or json_schema", param="response_format"
        )
    inner = response_format.get("json_schema")
    if not isinstance(inner, Mapping) or not isinstance(inner.get("schema"), Mapping):
        raise RequestRefused("response_format has no json_schema with a schema", param="response_format")
    return f"start: {json_rule(inner['schema'], inner.get('strict') is True)}"


def json_rule(schema: Mapping[str, Any], strict: bool, field: str = RESPONSE_FORMAT) -> str:
    """The right side of a rule. strict: refuse what cannot be enforced, rather than leave it out.

    field: of the request, which refusals name. Raises RequestRefused.
    """
    try:
        closed = close_objects(schema)
        keep_exact(closed)
        text = json.dumps({**closed, "x-guidance": {**FORM, "lenient": not strict}})
        if len(text) > MAX_SCHEMA:
            raise _refusal(f"the schema has more than {MAX_SCHEMA} characters", field)
    except RecursionError:
        raise _refusal("the schema is nested too deeply", field) from None
    except ValueError as error:  # a number that is rounded, or has too many digits
        raise _refusal(str(error), field) from None
    return f"%json {text}"


JSON_OBJECT = f"start: {json_rule({'type': 'object'}, strict=True)}"  # known to compile in milliseconds


def _refusal(why: str, field: str, code: str = "invalid_schema") -> RequestRefused:
    cause = why.rpartition("JSON schema: ")[2].rpartition("\nerror: ")[2]  # after where it is
    return RequestRefused(f"{field}: {_first_line(cause)}", param=field, code=code)


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:300]


class Vocabulary:
    """The texts of a model's tokens."""

    def __init__(self, model: Model) -> None:
        every = range(model.vocab_size)
        self.pieces = [model.piece(token) for token in every]
        ends = [token for token in every if model.ends_generation(token)]
        silent = (token for token, piece in enumerate(self.pieces) if not piece)
        self.texts = TokenTexts(
            tokens=[piece or model.piece(token, special=True) for token, piece in enumerate(self.pieces)],
            special=sorted({*silent, *ends}),
            ends=ends,
        )
        self.goes_on_number = np.array([piece != b"" and piece[0] in _NUMBER for piece in self.pieces])
        self.tokenizer = new_tokenizer(self.texts)

    def spell(self, text: bytes) -> list[int]:
        """The longest tokens that write this text, one after the other; up to a character that is cut off."""
        try:
            whole = text.decode()
        except UnicodeDecodeError as error:
            whole = text[: error.start].decode()
        return self.tokenizer.greedy_tokenize(whole)


class Grammars:
    """Compiles grammars into constraints for one model. Thread-safe."""

    def __init__(self, model: Model) -> None:
        self.model = model  # or the same with other weights
        self._trials = GrammarTrials(lambda: self._vocabulary.texts)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(self.model)

    def close(self) -> None:
        self._trials.close()

    def begin(
        self, grammar: str | None, check: Check = lambda: None, field: str = RESPONSE_FORMAT
    ) -> GrammarConstraint | None:
        """Compile a grammar, usually in a millisecond. Not cached: copies of a matcher would share its
        limits, and a request must not depend on another.

        field: of the request, which refusals name. check is called several times a second meanwhile; its
        exceptions propagate. Raises RequestRefused for a grammar that llguidance rejects, and with code
        schema_too_complex for one that takes too much time or memory to compile.
        """
        if grammar is None:
            return None
        verdict = Verdict() if grammar == JSON_OBJECT else self._trials.verdict(grammar, check)
        if not verdict.within_limits:
            raise _refusal(TOO_COMPLEX, field, "schema_too_complex")
        if verdict.error is not None:
            dead = verdict.error.startswith(NO_TOKEN)
            raise _refusal("nothing satisfies the schema" if dead else verdict.error, field)
        made = self._compiled(grammar, verdict.long, check)
        if made[0].is_error():
            raise _refusal(made[0].get_error(), field)
        return GrammarConstraint(self._vocabulary, *made)

    def _compiled(self, grammar: str, long: bool, check: Check) -> list[LLMatcher]:
        """In a thread of its own, since references in a long chain would overflow the stack of this one.

        The second one, unless the grammar is long or takes long, is for what it forces.
        """
        made: list[LLMatcher] = []
        tokenizer = self._vocabulary.tokenizer

        def run() -> None:
            try:
                if long:
                    lower_priority()
                made.append(compiled(tokenizer, grammar))
                if not long and len(grammar) <= MOST_AHEAD:
                    made.append(looking_ahead(tokenizer, grammar))
            finally:
                if long:
                    self._trials.end_long()

        if long:
            self._trials.begin_long(check)
        try:
            thread = start_thread(run, STACK_BYTES)
        except BaseException:  # there is no thread for it, and so no run() that lets another begin
            if long:
                self._trials.end_long()
            raise
        while thread.is_alive():
            thread.join(POLL_S)
            check()
        if not made:
            raise EngineError("a grammar that was tried before could not be compiled")
        return made


class GrammarConstraint:
    """The tokens that may follow those accepted so far. Belongs to one request."""

    def __init__(self, vocabulary: Vocabulary, matcher: LLMatcher, ahead: LLMatcher | None = None) -> None:
        """ahead: of the same grammar, for `forced`."""
        self.vocabulary = vocabulary
        self._matcher, self._ahead = matcher, ahead
        self._behind: list[int] = []  # tokens that were accepted, of which `ahead` does not know yet
        self._number = _Number()

    @property
    def forced(self) -> bytes:
        """The only text that may come next, up to the next choice; any tokens may write it.

        Empty also after it took too long to find. What may come next never depends on whether this was asked.
        """
        if self._ahead is None:
            return b""
        self._ahead.consume_tokens(self._behind)
        self._behind.clear()
        text = self._ahead.compute_ff_bytes()
        if self._ahead.is_error():
            self._ahead, text = None, b""
        return text

    @property
    def complete(self) -> bool:
        """Whether the tokens accepted so far are a whole answer."""
        matcher = self._matcher
        return not matcher.is_error() and (matcher.is_accepting() or matcher.is_stopped())

    def allowed(self) -> Mask:
        """After the end of the answer only tokens that end a generation.

        Raises DecodeFailed where nothing may come next, or it takes too long to say what.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        size = len(self.vocabulary.pieces)
        mask = np.unpackbits(bits, count=size, bitorder="little").view(np.bool_)
        if self._number.length >= LONGEST_NUMBER:
            ended = mask & ~self.vocabulary.goes_on_number
            return ended if ended.any() else mask
        return mask

    def accept(self, token: int) -> None:
        """Go on after this token, which must be an allowed one. Raises DecodeFailed."""
        self._matcher.consume_token(token)
        self._check()
        self._number.write(self.vocabulary.pieces[token])
        if self._ahead is not None:
            self._behind.append(token)

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error()
            if reason.startswith(NO_TOKEN):
                raise dead_end()
            raise DecodeFailed(
                f"the grammar is too complex: {_first_line(reason)}", code="grammar_too_complex"
            )


def dead_end() -> DecodeFailed:
    return DecodeFailed("no token of the vocabulary goes on as the grammar demands", code="grammar_dead_end")


_NUMBER = b"0123456789.eE+-"
_SIGNS = (
    b".eE+-"  # none follows another in a number, but for the sign of an exponent: a line of dashes is text
)
_QUOTE, _BACKSLASH = b'"\\'


class _Number:
    """How many characters the number at the end of a JSON text has."""

    def __init__(self) -> None:
        self.length = 0
        self._last = 0
        self._in_string = self._escaped = False

    def write(self, raw: bytes) -> None:
        for byte in raw:
            if self._in_string:
                self._in_string = self._escaped or byte != _QUOTE
                self._escaped = byte == _BACKSLASH and not self._escaped
            else:
                self._in_string = byte == _QUOTE
                exponent = self._last in b"eE" and byte in b"+-"
                if byte in _SIGNS and self._last in _SIGNS and not exponent:
                    self.length = 0
                self.length = self.length + 1 if byte in _NUMBER else 0
            self._last = byte
