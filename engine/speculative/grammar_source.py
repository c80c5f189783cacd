"""Drafts of what a grammar forces: keys, quotes and brackets of JSON, the rest of a value that has no other.

A grammar forces text, and any tokens may write it. The guess is the tokens in which the model wrote the same
text the last time, or else the longest ones. Like all guesses they are verified.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from engine.core.draft_source import DraftSource
from engine.core.sequence import SequenceState
from engine.core.token_tree import Node, Tree
from engine.sampling.grammar import Vocabulary
from engine.speculative.hit_rate import HitRate

LONGEST = 256  # bytes of one draft; a constant may be as long as a schema
REMEMBERED = 1024  # texts, with the tokens that wrote them
# Kinds of guesses, and the probability that the next token is as guessed where those before it were, measured
# on answers of a small model: a token as the last time; one inside of the text; the one at its end, where the
# model may prefer a token that goes on beyond it; and such a one that ends in a letter, a digit or a blank.
KNOWN, INNER, LAST, OPEN = range(4)
PRIOR = (0.98, 0.94, 0.95, 0.75)


@dataclass(slots=True)
class _Guess:
    """For the tokens from `start` on, not scored yet."""

    start: int
    tokens: list[int]
    rates: list[HitRate]


@dataclass(slots=True)
class _Run:
    """A forced text that the tokens from `start` on write."""

    start: int
    text: bytes


@dataclass(slots=True)
class _Memory:
    """State of one request."""

    guess: _Guess | None = None
    run: _Run | None = None


class GrammarSource(DraftSource):
    """Drafts a chain for a request with a grammar wherever only one text may come next."""

    name = "grammar"
    leads = True

    def __init__(self) -> None:
        self._rates = {sampled: [HitRate(p) for p in PRIOR] for sampled in (False, True)}
        self._spellings: OrderedDict[bytes, list[int]] = OrderedDict()  # the least recently used first

    def serves(self, sequence: SequenceState) -> bool:
        return sequence.constraint is not None

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
        return [self._draft(sequence, min(limit, sequence.remaining - 1)) for sequence in sequences]

    def _draft(self, sequence: SequenceState, limit: int) -> Tree:
        if sequence.constraint is None:
            return []
        memory: _Memory | None = sequence.source_state.get(self)
        if memory is None:
            memory = sequence.source_state[self] = _Memory()
        vocabulary, text = sequence.constraint.vocabulary, sequence.constraint.forced[:LONGEST]
        self._score(memory, sequence)
        self._remember(memory, sequence, vocabulary)
        if not text or limit < 1:
            return []
        memory.run = memory.run or _Run(sequence.length, text)
        tokens, kinds = self._spell(text, vocabulary)
        rates = [self._rates[sequence.params.temperature > 0][kind] for kind in kinds]
        memory.guess = _Guess(sequence.length, tokens, rates)
        path_probability, tree = 1.0, list[Node]()
        for depth, (token, rate) in enumerate(zip(tokens[:limit], rates, strict=False)):
            path_probability *= rate.value
            if path_probability < self.min_path_probability:
                break
            tree.append(Node(token, depth - 1, path_probability, self.name, depth + 1))
        return tree

    def _spell(self, text: bytes, vocabulary: Vocabulary) -> tuple[list[int], list[int]]:
        """Tokens that write this text, and the kind of each guess."""
        if text in self._spellings:
            self._spellings.move_to_end(text)
            tokens = self._spellings[text]
            return tokens, [KNOWN] * len(tokens)
        tokens = vocabulary.spell(text)
        kinds = [INNER] * len(tokens)
        if tokens:
            kinds[-1] = OPEN if text[-1:].isalnum() or text[-1:].isspace() else LAST
        return tokens, kinds

    def _score(self, memory: _Memory, sequence: SequenceState) -> None:
        """Score the last guess against the tokens that came since, up to the first wrong one."""
        guess, memory.guess = memory.guess, None
        if guess is None:
            return
        emitted = sequence.tokens[guess.start : sequence.length].tolist()
        for token, guessed, rate in zip(emitted, guess.tokens, guess.rates, strict=False):
            rate.count(token == guessed)
            if token != guessed:
                return

    def _remember(self, memory: _Memory, sequence: SequenceState, vocabulary: Vocabulary) -> None:
        """Once a forced text is there: the tokens that wrote it, without one that goes on beyond it."""
        run = memory.run
        if run is None:
            return
        tokens, left = list[int](), len(run.text)
        for token in sequence.tokens[run.start : sequence.length].tolist():
            left -= len(vocabulary.pieces[token])
            if left >= 0:
                tokens.append(token)
            if left <= 0:
                break
        else:
            return
        memory.run = None
        self._spellings[run.text] = tokens
        self._spellings.move_to_end(run.text)
        if len(self._spellings) > REMEMBERED:
            self._spellings.popitem(last=False)
