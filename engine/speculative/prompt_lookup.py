"""Prompt lookup: drafts copied from the request's own tokens, without running a model.

If the last tokens occurred before, in prompt or output, the text may continue as it did then (prompt lookup
decoding, A. Saxena 2023; LLMA, arXiv:2304.04487).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.core.draft_source import DraftSource
from engine.core.sequence import SequenceState
from engine.core.token_tree import Node, Tree
from engine.speculative.hit_rate import HitRate

MAX_DRAFTS = 23
CANDIDATES = 8  # earlier occurrences that are compared, the most recent first
OWN_PRIOR = 8.0  # weight of the shared rates against a request's own record, in trials
OWN_WINDOW = 30.0
# Probability that the next token is the same as after the match, measured on greedy answers of a small model.
# By length of the match (the largest of LENGTHS that is not above it; accepted draft tokens make the match
# longer) and by the other occurrences of the last two tokens that agreed so far: none or some (ALONE), all
# (AGREED), or none of them (DISPUTED) continue with the same token.
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
    """For each token the position after its last occurrence, and for each pair those after the last few."""

    pairs: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    singles: dict[int, int] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)

    def extend(self, tokens: list[int]) -> None:
        """Append the sequence's new tokens."""
        known, done = self.tokens, len(self.tokens)
        known += tokens
        for end in range(max(1, done), len(known)):
            self.singles[known[end - 1]] = end
            if end > 1:
                positions = self.pairs.setdefault((known[end - 2], known[end - 1]), [])
                positions.append(end)
                del positions[:-CANDIDATES]

    def longest_match(self, expected: Sequence[int] = ()) -> tuple[int, int, list[int]]:
        """The longest earlier occurrence of the last tokens: (length, position after it, positions after the
        other occurrences of the last two tokens). expected: what comes after the sequence's own tokens.
        """
        known = [*self.tokens, *expected] if expected else self.tokens
        if len(known) < 2:
            return 0, 0, []
        positions = self.pairs.get((known[-2], known[-1]))
        if not positions:
            at = self.singles.get(known[-1], 0)
            return (1, at, []) if at else (0, 0, [])
        best, at = 0, 0
        for position in reversed(positions):
            length = 2
            while (
                length < MAX_MATCH
                and position > length
                and known[position - 1 - length] == known[-1 - length]
            ):
                length += 1
            if length > best:
                best, at = length, position
                if best == MAX_MATCH:
                    break
        return best, at, [position for position in positions if position != at]


@dataclass(slots=True)
class _Record:
    """Hits of one request's drafts against the expected ones: some texts repeat themselves, others never."""

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
        """The probability for this request: the odds of the shared rate, shifted by the request's record."""
        better = (OWN_PRIOR + self.hits) / (OWN_PRIOR + self.expected_hits)
        worse = (OWN_PRIOR + self.misses) / (OWN_PRIOR + self.expected_misses)
        return chance * better / (chance * better + (1 - chance) * worse)


@dataclass(slots=True)
class _Guess:
    """The guess that the tokens from `start` on repeat those from `position` on. It is scored even if it was
    not verified. expected: the tokens before `start` that it took for granted. rates: one for each token.
    """

    start: int
    expected: list[int]
    position: int
    rates: list[HitRate]


@dataclass(slots=True)
class _Memory:
    """State of one request."""

    index: LookupIndex = field(default_factory=LookupIndex)
    record: _Record = field(default_factory=_Record)
    guess: _Guess | None = None  # the last one, not scored yet

    def score(self) -> None:
        """Score the last guess against the tokens that came since, up to the first wrong one."""
        guess, self.guess = self.guess, None
        if guess is None:
            return
        tokens = self.index.tokens
        if tokens[guess.start - len(guess.expected) : guess.start] != guess.expected:
            return
        for depth, rate in enumerate(guess.rates[: len(tokens) - guess.start]):
            hit = tokens[guess.position + depth] == tokens[guess.start + depth]
            self.record.count(hit, rate.value)
            rate.count(hit)
            if not hit:
                return


class LookupSource(DraftSource):
    """Drafts a chain from the longest suffix match; probabilities come from the hit rates of such matches."""

    name = "lookup"

    def __init__(self) -> None:
        self._rates = {sampled: [[HitRate(p) for p in kind] for kind in PRIOR] for sampled in (False, True)}

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
        limit = min(limit, MAX_DRAFTS)
        return [self._draft(sequence, min(limit, sequence.remaining - 1)) for sequence in sequences]

    def _draft(self, sequence: SequenceState, limit: int) -> Tree:
        memory: _Memory | None = sequence.source_state.get(self)
        if memory is None:
            memory = sequence.source_state[self] = _Memory()
        index, length = memory.index, sequence.length
        index.extend(sequence.tokens[len(index.tokens) : length].tolist())
        memory.score()
        tree, expected = [*sequence.expected], [node.token for node in sequence.expected]
        match, position, others = index.longest_match(expected)
        if not match or limit <= len(tree):
            return []
        tokens, rates = index.tokens, self._rates[sequence.params.temperature > 0]
        # Matches of one token are the most frequent, and scoring them would cost the most time.
        if match == 1 and memory.record.adjust(rates[ALONE][0].value) < self.min_path_probability:
            return []
        guess = memory.guess = _Guess(length + len(expected), expected, position, [])
        path_probability = tree[-1].path_probability if tree else 1.0
        for depth in range(limit - len(expected)):
            # The copied tokens may reach the end of the sequence; then the draft itself is copied.
            at = position + depth
            token = tokens[at] if at < length else tree[at - length].token
            kind = ALONE
            if others:
                same = [o for o in others if (tokens[o] if o < length else tree[o - length].token) == token]
                kind = DISPUTED if not same else AGREED if len(same) == len(others) else ALONE
                others = [o + 1 for o in same]
            rate = rates[kind][CELL[match + depth]]
            guess.rates.append(rate)
            path_probability *= memory.record.adjust(rate.value)
            if path_probability < self.min_path_probability:
                break
            tree.append(Node(token, len(tree) - 1, path_probability, self.name, len(tree) + 1))
        return tree if len(tree) > len(expected) else []
