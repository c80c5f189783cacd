"""Grammars without a model's opinion: what they let be written, byte by byte or at random."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from engine import DecodeFailed, EngineError, response_grammar
from engine.llama.model import Model
from engine.sampling.grammar import GrammarConstraint, Grammars

END = 2  # of the tiny model
FIRST_BYTE = 3  # of its tokens of one byte each


def schema_format(schema: Any, strict: bool = True) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": strict}}


def grammar_of(schema: Any, strict: bool = True) -> str:
    grammar = response_grammar(schema_format(schema, strict))
    assert grammar is not None
    return grammar


def in_one_form(text: str) -> bool:
    """Whether blanks stand after commas and colons of JSON, and no whitespace anywhere else."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    return re.sub(r"[,:] (?=\S)", "", bare) == re.sub(r"[\s,:]", "", bare)


class Writer:
    """Writes answers with the tokens of a model, none liked better than another."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._grammars = Grammars(model)

    def close(self) -> None:
        self._grammars.close()

    def begin(self, grammar: str) -> GrammarConstraint:
        constraint = self._grammars.begin(grammar)
        assert constraint is not None
        return constraint

    def takes(self, grammar: str, text: str | bytes) -> bool:
        """Whether this is a whole answer, written byte by byte: the model must be the tiny one."""
        constraint = self.begin(grammar)
        raw = text.encode() if isinstance(text, str) else text
        try:
            for byte in raw:
                constraint.accept(FIRST_BYTE + byte)
        except DecodeFailed:
            return False
        return bool(constraint.allowed()[END])

    def takes_tokens(self, grammar: str, text: str) -> bool:
        """Whether this is a whole answer in the tokens in which the model reads it, each of them allowed."""
        constraint = self.begin(grammar)
        for token in self.model.tokenize(text, add_bos=False, special=False).tolist():
            if not constraint.allowed()[token]:
                return False
            constraint.accept(token)
        return any(self.model.ends_generation(int(token)) for token in np.flatnonzero(constraint.allowed()))

    def write(self, grammar: str, rng: random.Random, most: int = 200) -> str | None:
        """A random answer; None for one that is not whole after so many tokens."""
        constraint, model = self.begin(grammar), self.model
        text = b""
        for written in range(most):
            ids = np.flatnonzero(constraint.allowed())
            assert len(ids), (text, grammar)
            token = int(rng.choice(self._leaning(ids, written / most, rng)))
            constraint.accept(token)
            if model.ends_generation(token):
                return text.decode()
            text += model.piece(token)
        return None

    def _leaning(self, ids: Any, share: float, rng: random.Random) -> list[int]:
        """The longer the answer, the rather it ends."""
        pieces = {int(token): self.model.piece(int(token)) for token in ids}
        ending = [token for token in pieces if self.model.ends_generation(token)]
        closing = [token for token, piece in pieces.items() if piece[:1] in (b'"', b"}", b"]")]
        for tokens, chance in ((ending, 0.7), (closing, share**0.3)):
            if tokens and rng.random() < chance:
                return tokens
        return [*pieces]


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def failure(run: Callable[[], object]) -> EngineError | None:
    try:
        run()
    except EngineError as error:
        return error
    return None
