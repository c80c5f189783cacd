"""Prompt lookup: the request's own tokens as a draft source, at no model cost.

Where the last tokens stood before, in prompt or output, the text may go on as it did then (prompt
lookup decoding, A. Saxena 2023; LLMA, arXiv:2304.04487).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from engine.core.draft_source import DraftSource, Node, Tree
from engine.core.sequence import Sequence

MAX_DRAFTS = 23
CANDIDATES = 8  # earlier places looked at, the most recent first
OWN_PRIOR = 8.0  # trials that a request's own record counts as even before it has any
OWN_WINDOW = 30.0
WINDOW = 200.0  # trials after which an old one counts 1/e
PRIOR_TRIALS = 20.0
# Chances that the next token follows as it did before, measured on greedy answers of a small model, by the
# length of the match (lengths between share the shorter one's; a draft that holds makes the match longer),
# and by what other places with the same last two tokens, as far as they went along, say: there are none or
# they are of two minds, all say the same, none does.
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 16, 20, 30, 40)
ALONE, AGREED, DISPUTED = range(3)
PRIOR = (
    (0.25, 0.57, 0.68, 0.74, 0.78, 0.82, 0.85, 0.87, 0.89, 0.91, 0.93, 0.95, 0.97, 0.98),
    (0.25, 0.78, 0.87, 0.90, 0.94, 0.95, 0.95, 0.97, 0.98, 0.98, 0.99, 0.99, 0.99, 0.99),
    (0.25, 0.29, 0.35, 0.47, 0.53, 0.60, 0.60, 0.60, 0.70, 0.78, 0.78, 0.80, 0.85, 0.92),
)
MAX_MATCH = LENGTHS[-1]
CELL = [bisect_right(LENGTHS, length) - 1 for length in range(MAX_MATCH + MAX_DRAFTS + 1)]  # of a length


@dataclass(slots=True)
class LookupIndex:
    """Where each token of a sequence was last followed by another, and each pair the last few times."""

    pairs: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    singles: dict[int, int] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)

    def extend(self, tokens: list[int]) -> None:
        """tokens: those after the ones known already."""
        known, done = self.tokens, len(self.tokens)
        known += tokens
        for end in range(max(1, done), len(known)):
            self.singles[known[end - 1]] = end
            if end > 1:
                places = self.pairs.setdefault((known[end - 2], known[end - 1]), [])
                places.append(end)
                del places[:-CANDIDATES]

    def longest_match(self) -> tuple[int, int, list[int]]:
        """The longest earlier occurrence of the last tokens: its length, the place of its follower, and those
        of the followers of other occurrences of the last two.
        """
        known = self.tokens
        if len(known) < 2:
            return 0, 0, []
        places = self.pairs.get((known[-2], known[-1]))
        if not places:
            at = self.singles.get(known[-1], 0)
            return (1, at, []) if at else (0, 0, [])
        best, at = 0, 0
        for place in reversed(places):
            length = 2
            while length < MAX_MATCH and place > length and known[place - 1 - length] == known[-1 - length]:
                length += 1
            if length > best:
                best, at = length, place
                if best == MAX_MATCH:
                    break
        return best, at, [place for place in places if place != at]


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
    """That from `start` on a sequence repeats what it says from `place` on, whether or not it was drafted.

    rates: of each token.
    """

    start: int
    place: int
    rates: list[_Rate]


@dataclass(slots=True)
class _Memory:
    """What is kept of one request."""

    index: LookupIndex = field(default_factory=LookupIndex)
    record: _Record = field(default_factory=_Record)
    guess: _Guess | None = None  # the last one

    def score(self) -> None:
        """Count what has come since the last guess, verified or not, up to the first that was wrong."""
        guess, self.guess = self.guess, None
        if guess is None:
            return
        tokens = self.index.tokens
        for depth, rate in enumerate(guess.rates[: len(tokens) - guess.start]):
            hit = tokens[guess.place + depth] == tokens[guess.start + depth]
            self.record.count(hit, rate.value)
            rate.count(hit)
            if not hit:
                return


class LookupSource(DraftSource):
    """A chain from the longest suffix match, priced by what such matches have been worth."""

    name = "lookup"

    def __init__(self) -> None:
        self._rates = {sampled: [[_Rate(p) for p in kind] for kind in PRIOR] for sampled in (False, True)}

    def draft(self, sequences: Many[Sequence], limit: int) -> list[Tree]:
        limit = min(limit, MAX_DRAFTS)
        return [self._draft(sequence, min(limit, sequence.remaining - 1)) for sequence in sequences]

    def _draft(self, sequence: Sequence, limit: int) -> Tree:
        memory: _Memory | None = sequence.memory.get(self)
        if memory is None:
            memory = sequence.memory[self] = _Memory()
        index, length = memory.index, sequence.length
        index.extend(sequence.tokens[len(index.tokens) : length].tolist())
        memory.score()
        match, place, others = index.longest_match()
        if not match or limit < 1:
            return []
        tokens, rates = index.tokens, self._rates[sequence.params.temperature > 0]
        # The commonest case is a match of one token; counting those would cost most.
        if match == 1 and memory.record.adjust(rates[ALONE][0].value) < self.min_survival:
            return []
        guess = memory.guess = _Guess(length, place, [])
        survival, tree = 1.0, list[Node]()
        for depth in range(limit):
            # The copied text may run into the very tokens it was found by: it then repeats from there.
            at = place + depth
            token = tokens[at] if at < length else tree[at - length].token
            kind = ALONE
            if others:
                same = [o for o in others if (tokens[o] if o < length else tree[o - length].token) == token]
                kind = DISPUTED if not same else AGREED if len(same) == len(others) else ALONE
                others = [o + 1 for o in same]
            rate = rates[kind][CELL[match + depth]]
            guess.rates.append(rate)
            survival *= memory.record.adjust(rate.value)
            if survival < self.min_survival:
                break
            tree.append(Node(token, depth - 1, survival, self.name, depth + 1))
        return tree


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
