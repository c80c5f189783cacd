"""Prompt lookup: the request's own tokens as a draft source, at no model cost.

Where the last tokens stood before, in prompt or output, the text may go on as it did then (prompt
lookup decoding, A. Saxena 2023; LLMA, arXiv:2304.04487).
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from engine.draft import DraftSource, Node, Tree
from engine.sequence import Sequence

MAX_DRAFTS = 7
MAX_MATCH = 8  # longer matches are no more telling
CANDIDATES = 4  # earlier places looked at, the most recent first
OWN_PRIOR = 2.0  # trials that a request's own record counts as even before it has any
OWN_WINDOW = 30.0
WINDOW = 200.0  # trials after which an old one counts 1/e
PRIOR_TRIALS = 20.0
# Chance of the first draft by length of the match, measured on greedy answers of a small model.
PRIOR_FIRST = (0.0, 0.20, 0.56, 0.65, 0.74, 0.77, 0.90, 0.94, 0.96)
PRIOR_NEXT = 0.85  # chance of a further draft when the one before it held


@dataclass(slots=True)
class _Index:
    """Where each token, and each pair of tokens, of a sequence was last followed by another."""

    done: int = 0  # tokens whose followers are indexed
    pairs: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    singles: dict[int, int] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)

    def extend(self, tokens: list[int]) -> None:
        """tokens: those after the ones known already."""
        self.tokens += tokens
        known = self.tokens
        for end in range(max(1, self.done), len(known)):
            self.singles[known[end - 1]] = end
            if end > 1:
                places = self.pairs.setdefault((known[end - 2], known[end - 1]), [])
                places.append(end)
                del places[:-CANDIDATES]
        self.done = len(known)

    def longest_match(self) -> tuple[int, int]:
        """(length, place of the follower) of the longest earlier occurrence of the last tokens."""
        known = self.tokens
        if len(known) < 2:
            return 0, 0
        best, at = 0, 0
        for place in reversed(self.pairs.get((known[-2], known[-1]), ())):
            length = 2
            while length < MAX_MATCH and place > length and known[place - 1 - length] == known[-1 - length]:
                length += 1
            if length > best:
                best, at = length, place
        if not best and known[-1] in self.singles:
            best, at = 1, self.singles[known[-1]]
        return best, at


@dataclass(slots=True)
class _Record:
    """How a request's guesses have fared against what was expected of them: some texts repeat, some never."""

    hits: float = 0.0
    misses: float = 0.0
    expected_hits: float = 0.0
    expected_misses: float = 0.0

    def count(self, hit: bool, chance: float) -> None:
        keep = 1 - 1 / OWN_WINDOW
        self.hits = self.hits * keep + hit
        self.misses = self.misses * keep + (not hit)
        self.expected_hits = self.expected_hits * keep + chance
        self.expected_misses = self.expected_misses * keep + 1 - chance

    def adjust(self, chance: float) -> float:
        """A chance that holds on average, for this request: its odds shifted by the record."""
        better = (OWN_PRIOR + self.hits) / (OWN_PRIOR + self.expected_hits)
        worse = (OWN_PRIOR + self.misses) / (OWN_PRIOR + self.expected_misses)
        return chance * better / (chance * better + (1 - chance) * worse)


@dataclass(slots=True)
class _Guess:
    """A guess whose tokens have not all been emitted yet."""

    start: int  # place of the first guessed token in the sequence
    match: int
    tokens: list[int]


@dataclass(slots=True)
class _Memory:
    """What is kept of one request."""

    index: _Index = field(default_factory=_Index)
    record: _Record = field(default_factory=_Record)
    pending: list[_Guess] = field(default_factory=list)


class LookupSource(DraftSource):
    """A chain from the longest suffix match, priced by what such matches have been worth."""

    name = "lookup"

    def __init__(self) -> None:
        # Counts by whether the request is sampled, and match length; further drafts have one cell a depth.
        self._first = {sampled: [_Rate(p) for p in PRIOR_FIRST] for sampled in (False, True)}
        self._next = {sampled: [_Rate(PRIOR_NEXT) for _ in range(MAX_DRAFTS)] for sampled in (False, True)}

    def draft(self, sequences: Many[Sequence], limit: int) -> list[Tree]:
        limit = min(limit, MAX_DRAFTS)
        return [self._draft(sequence, limit) for sequence in sequences]

    def _draft(self, sequence: Sequence, limit: int) -> Tree:
        memory: _Memory | None = sequence.memory.get(self)
        if memory is None:
            memory = sequence.memory[self] = _Memory()
        index, length = memory.index, sequence.length
        index.extend(sequence.tokens[len(index.tokens) : length].tolist())
        sampled = sequence.params.temperature > 0
        if memory.pending:
            self._score(memory, sampled)
        match, place = index.longest_match()
        if not match or limit < 1:
            return []
        record = memory.record
        survival, tree = record.adjust(self._first[sampled][match].value), []
        if match == 1 and survival < self.min_survival:  # the commonest case; counting it would cost most
            return []
        # The copied text may run into the very tokens it was found by: it then repeats from there.
        copied: list[int] = []
        for at in range(place, place + limit):
            copied.append(index.tokens[at] if at < length else copied[at - length])
        memory.pending.append(_Guess(length, match, copied))
        for depth, token in enumerate(copied, 1):
            if survival < self.min_survival:
                break
            tree.append(Node(token, depth - 2, survival, self.name, depth))
            survival *= record.adjust(self._next[sampled][depth - 1].value)
        return tree

    def _score(self, memory: _Memory, sampled: bool) -> None:
        """Count each guess once all its tokens have been emitted, verified or not, or one is known wrong."""
        waiting = []
        for guess in memory.pending:
            emitted = memory.index.tokens[guess.start : guess.start + len(guess.tokens)]
            right = _common(guess.tokens, emitted)
            if right == len(emitted) < len(guess.tokens):
                waiting.append(guess)
            else:
                self._count(guess, right, memory.record, sampled)
        memory.pending = waiting

    def _count(self, guess: _Guess, right: int, record: _Record, sampled: bool) -> None:
        rates = [self._first[sampled][guess.match], *self._next[sampled]]
        for depth, rate in enumerate(rates[: min(right + 1, len(guess.tokens))]):
            record.count(depth < right, rate.value)
            rate.count(depth < right)


def _common(a: list[int], b: list[int]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


class _Rate:
    """A decayed share of hits, leaning on a prior."""

    def __init__(self, prior: float) -> None:
        self._hits, self._trials = prior * PRIOR_TRIALS, PRIOR_TRIALS

    @property
    def value(self) -> float:
        return self._hits / self._trials

    def count(self, hit: bool) -> None:
        keep = 1 - 1 / WINDOW
        self._hits, self._trials = self._hits * keep + hit, self._trials * keep + 1
