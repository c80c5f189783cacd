"""What an answer must look like: from a response_format to a grammar, and llama.cpp's sampler over it."""

from __future__ import annotations

import codecs
import ctypes
import json
import weakref
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from engine.allowed import Ids
from engine.errors import RequestRefused
from engine.gbnf import Rules
from engine.model import Model
from engine.schema import to_gbnf

CACHED_FORMATS = 64  # a batch's lines mostly share one
MANY = 512  # tokens; from here on it pays to ask first which bytes a token may begin with
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data


def response_grammar(response_format: Mapping[str, Any] | None) -> str | None:
    """GBNF for a response_format as in OpenAI's chat completions; None where any text will do.

    Raises RequestRefused, for a schema that no grammar can hold with code invalid_schema.
    """
    kind = None if response_format is None else response_format.get("type")
    if response_format is None or kind == "text":
        return None
    if kind == "json_object":
        return Rules().text("object")
    if kind != "json_schema":
        raise RequestRefused(
            "response_format must have the type text, json_object or json_schema", param="response_format"
        )
    inner = response_format.get("json_schema")
    if not isinstance(inner, Mapping) or "schema" not in inner:
        raise RequestRefused("response_format has no json_schema with a schema", param="response_format")
    try:
        return _schema_grammar(json.dumps(inner["schema"]), inner.get("strict") is True)
    except RecursionError:
        raise _refusal("the schema is nested too deeply, or refers to itself without end") from None


@lru_cache(CACHED_FORMATS)
def _schema_grammar(schema: str, strict: bool) -> str:
    return to_gbnf(json.loads(schema), strict)


def _refusal(why: str) -> RequestRefused:
    return RequestRefused(f"response_format: {why}", param="response_format", code="invalid_schema")


class Alphabet:
    """What each token of a model writes, as far as a grammar must know it."""

    def __init__(self, model: Model) -> None:
        self.ends = np.zeros(model.vocab_size, dtype=np.bool_)
        self.whole = np.zeros(model.vocab_size, dtype=np.bool_)  # writes whole characters
        self.partial: dict[int, bytes] = {}  # tokens that begin or end inside a character
        self.first = np.zeros(model.vocab_size, dtype=np.uint8)  # its first byte
        self.single = np.full(256, -1, dtype=np.int64)  # for each byte a token of just that byte
        for token in range(model.vocab_size):
            self.ends[token] = model.ends_generation(token)
            piece = model.piece(token)
            if not piece or b"\0" in piece:
                continue  # llama.cpp would take a control token for its name, and ends a text at a NUL
            self.first[token] = piece[0]
            if len(piece) == 1:
                self.single[piece[0]] = token
            try:
                piece.decode()
                self.whole[token] = True
            except UnicodeDecodeError:
                self.partial[token] = piece
        self.sure = self.whole | self.ends


class Grammars:
    """Begins constraints for one model, from any thread."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @cached_property
    def _alphabet(self) -> Alphabet:
        return Alphabet(self._model)

    def begin(self, grammar: str | None) -> GrammarConstraint | None:
        """Raises RequestRefused for a grammar that llama.cpp does not take."""
        return None if grammar is None else GrammarConstraint(self._model, self._alphabet, grammar)


class GrammarConstraint:
    """The tokens that may follow those accepted so far. Belongs to one request.

    llama.cpp's grammar takes some bytes for characters that are none (surrogates, overlong forms, bytes
    above F4). Tokens that write such bytes are refused here, so the text is what the grammar has seen.
    """

    def __init__(self, model: Model, alphabet: Alphabet, grammar: str) -> None:
        self._model = model  # outlives the sampler, which points into its vocabulary
        self._alphabet = alphabet
        raw = grammar.encode() or b"-"  # an empty one would allow everything
        self._sampler = llama_cpp.llama_sampler_init_grammar(model.vocab, raw, b"root")
        if not self._sampler:
            raise _refusal(
                "llama.cpp takes no such grammar: it refers to itself without end, or is malformed"
            )
        weakref.finalize(self, llama_cpp.llama_sampler_free, self._sampler).atexit = False
        self._unfinished = b""  # bytes of a character that is not whole yet

    def allowed(self, ids: Ids) -> NDArray[np.bool_]:
        if len(ids) < MANY:
            return self._test(ids)
        alphabet = self._alphabet
        begins = np.ones(256, dtype=np.bool_)
        known = alphabet.single >= 0
        begins[known] = self._test(alphabet.single[known])
        possible = begins[alphabet.first[ids]] | alphabet.ends[ids]
        result = np.zeros(len(ids), dtype=np.bool_)
        result[possible] = self._test(ids[possible])
        return result

    def accept(self, token: int) -> None:
        """Only for an allowed token: at any other llama.cpp ends the process."""
        llama_cpp.llama_sampler_accept(self._sampler, token)
        piece = self._alphabet.partial.get(token)
        self._unfinished = b"" if piece is None else unfinished(self._unfinished + piece)

    def _test(self, ids: Ids) -> NDArray[np.bool_]:
        candidates = np.zeros(len(ids), dtype=_CANDIDATE)
        candidates["id"] = ids
        data = ctypes.cast(candidates.ctypes.data, llama_cpp.llama_cpp.llama_token_data_p)
        array = llama_cpp.llama_token_data_array(data, len(ids), -1, False)
        llama_cpp.llama_sampler_apply(self._sampler, ctypes.byref(array))
        allowed: NDArray[np.bool_] = candidates["logit"] == 0
        for i in np.flatnonzero(allowed & ~self._alphabet.sure[ids]):
            allowed[i] = self._goes_on(int(ids[i]))
        return allowed

    def _goes_on(self, token: int) -> bool:
        piece = self._alphabet.partial.get(token)
        if piece is None:
            return False
        try:
            unfinished(self._unfinished + piece)
        except UnicodeDecodeError:
            return False
        return True


def unfinished(text: bytes) -> bytes:
    """Its end that may still become a character. Raises UnicodeDecodeError for what never is UTF-8."""
    rest = text[codecs.utf_8_decode(text, "strict", False)[1] :]
    if rest[:1] == b"\xed" and rest[1:2] > b"\x9f":
        rest.decode()  # a surrogate, of which the line above waits for the end
    return rest
