"""What an answer must look like: from a response_format to the tokens that may come next.

llguidance does the work. It holds more of JSON Schema than llama.cpp's own grammars do, says of the rest
that it cannot, and every step it takes has a limit: no schema can stop the engine for everybody.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from engine.errors import DecodeFailed, RequestRefused
from engine.model import Model

MAX_SCHEMA = 256 * 1024  # characters; one of this length compiles within a second or so
MAX_COSTLY = 32  # keywords of COSTLY: each may take a tenth of a second to compile
COSTLY = ("multipleOf", "patternProperties")
STACK_BYTES = 256 << 20  # for the recursion of the compiler: a schema of MAX_SCHEMA may need 60 MiB
LONGEST_NUMBER = 32  # characters, where the schema does not want more: a double has at most 24
# Models that are not allowed what they wish to say write blanks without end if they may.
WHITESPACE = r" |\r?\n[ \t]{0,40}"
# Where only one text may come, any tokens may write it: not every vocabulary gives back what it tokenized.
NOT_FORCED = '%llguidance {"no_forcing": true}'
LIMITS = LLParserLimits(
    initial_lexer_fuel=200_000,
    step_lexer_fuel=50_000,  # some 5 ms for one token of one request, where ordinary schemas take 0.1
    max_lexer_states=50_000,  # 2 kB each
    verbose_errors=False,  # they repeat the schema
)

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
        return _json_grammar({"type": "object"}, strict=True)
    if kind != "json_schema":
        raise RequestRefused(
            "response_format must have the type text, json_object or json_schema", param="response_format"
        )
    inner = response_format.get("json_schema")
    if not isinstance(inner, Mapping) or not isinstance(inner.get("schema"), Mapping):
        raise RequestRefused("response_format has no json_schema with a schema", param="response_format")
    return _json_grammar(inner["schema"], inner.get("strict") is True)


def _json_grammar(schema: Mapping[str, Any], strict: bool) -> str:
    """strict: refuse what cannot be enforced, rather than leave it out."""
    options = {"whitespace_pattern": WHITESPACE, "lenient": not strict}
    try:
        text = json.dumps({**schema, "x-guidance": options})
        if len(text) > MAX_SCHEMA:
            raise _refusal(f"the schema has more than {MAX_SCHEMA} characters")
        if _costly(text) > MAX_COSTLY:
            raise _refusal(f"the schema uses {' and '.join(COSTLY)} more than {MAX_COSTLY} times")
    except RecursionError:
        raise _refusal("the schema is nested too deeply") from None
    except ValueError as error:  # an integer of too many digits
        raise _refusal(str(error)) from None
    return f"start: %json {text}"


def _costly(text: str) -> int:
    """How many multiples and patterns of properties a schema has."""
    found = 0

    def count(value: dict[str, Any]) -> dict[str, Any]:
        nonlocal found
        for keyword in COSTLY:
            held = value.get(keyword, ())
            found += len(held) if isinstance(held, dict | tuple) else 1
        return value

    json.loads(text, object_hook=count)
    return found


def _refusal(why: str) -> RequestRefused:
    cause = why.rpartition("JSON schema: ")[2].rpartition("\nerror: ")[2]  # after where it is
    message = f"response_format: {_first_line(cause)}"
    return RequestRefused(message, param="response_format", code="invalid_schema")


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:300]


class Vocabulary:
    """What the tokens of a model write, with the names that llguidance's TokenizerWrapper looks for."""

    bos_token_id = None

    def __init__(self, model: Model) -> None:
        every = range(model.vocab_size)
        self.pieces = [model.piece(token) for token in every]
        self.tokens = [piece or model.piece(token, special=True) for token, piece in enumerate(self.pieces)]
        self.ends = [token for token in every if model.ends_generation(token)]
        silent = (token for token, piece in enumerate(self.pieces) if not piece)
        self.special_token_ids = sorted({*silent, *self.ends})  # no part of an answer
        self.eos_token_id = self.ends[0] if self.ends else None
        self.goes_on_number = np.array([piece != b"" and piece[0] in _NUMBER for piece in self.pieces])

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError("nothing is tokenized where nothing is forced")


class Grammars:
    """Begins constraints for one model, from any thread."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(self._model)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        return LLTokenizer(TokenizerWrapper(self._vocabulary), eos_token=self._vocabulary.ends or None)

    def begin(self, grammar: str | None) -> GrammarConstraint | None:
        """Compiled each time, in a millisecond as a rule: copies of a matcher share what they may use up of
        its limits, and a request must not depend on another.

        Raises RequestRefused for a grammar that llguidance does not take.
        """
        if grammar is None:
            return None
        return GrammarConstraint(self._vocabulary, _compiled(self._tokenizer, grammar))


_one_at_a_time = threading.Lock()  # a compiler takes a processor, and others run requests


def _compiled(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """In a thread of its own, since references in a long chain would overflow the stack of this one."""
    made: list[LLMatcher] = []
    thread = threading.Thread(
        target=lambda: made.append(
            LLMatcher(tokenizer, f"{NOT_FORCED}\n{grammar}", log_level=0, limits=LIMITS)
        )
    )
    with _one_at_a_time:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
        thread.join()
    [matcher] = made
    matcher.compute_bitmask()  # an error where not even one token may come
    if matcher.is_error():
        dead = matcher.get_error().startswith(NO_TOKEN)
        raise _refusal("nothing satisfies the schema" if dead else matcher.get_error())
    return matcher


class GrammarConstraint:
    """The tokens that may follow those accepted so far. Belongs to one request."""

    def __init__(self, vocabulary: Vocabulary, matcher: LLMatcher) -> None:
        self._vocabulary = vocabulary
        self._matcher = matcher
        self._number = _Number()

    def allowed(self) -> Mask:
        """After the end of the answer only tokens that end a generation.

        Raises DecodeFailed where nothing may come next, or it takes too long to say what.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        size = len(self._vocabulary.pieces)
        mask = np.unpackbits(bits, count=size, bitorder="little").view(np.bool_)
        if self._number.length >= LONGEST_NUMBER:
            ended = mask & ~self._vocabulary.goes_on_number
            return ended if ended.any() else mask
        return mask

    def accept(self, token: int) -> None:
        """Go on after this token, which must be an allowed one. Raises DecodeFailed."""
        self._matcher.consume_token(token)
        self._check()
        self._number.write(self._vocabulary.pieces[token])

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
_QUOTE, _BACKSLASH = b'"\\'


class _Number:
    """How many characters the number at the end of a JSON text has."""

    def __init__(self) -> None:
        self.length = 0
        self._in_string = self._escaped = False

    def write(self, raw: bytes) -> None:
        for byte in raw:
            if self._in_string:
                self._in_string = self._escaped or byte != _QUOTE
                self._escaped = byte == _BACKSLASH and not self._escaped
            else:
                self._in_string = byte == _QUOTE
                self.length = self.length + 1 if byte in _NUMBER else 0
