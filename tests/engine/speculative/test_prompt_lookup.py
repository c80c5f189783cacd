"""Prompt lookup: the longest earlier occurrence, what follows it, and its hit rates."""

from __future__ import annotations

import gc
import random
import weakref

import numpy as np
import pytest

from engine import Request, SamplingParams
from engine.core.sequence import SequenceState
from engine.core.token_tree import ROOT, chain
from engine.speculative.hit_rate import PRIOR_TRIALS, WINDOW, HitRate
from engine.speculative.prompt_lookup import (
    AGREED,
    ALONE,
    CANDIDATES,
    CELL,
    DISPUTED,
    LENGTHS,
    MAX_DRAFTS,
    MAX_MATCH,
    PRIOR,
    LookupSource,
)


def sequence(tokens: list[int], **sampling: object) -> SequenceState:
    params = SamplingParams(**{"max_tokens": 20_000, **sampling})  # type: ignore[arg-type]
    return SequenceState(Request(id="-", prompt="-", sampling=params), np.array(tokens, dtype=np.int32), 0.0)


def emit(s: SequenceState, *tokens: int) -> None:
    s.tokens[s.length : s.length + len(tokens)] = tokens
    s.length += len(tokens)


def drafted(source: LookupSource, s: SequenceState, limit: int = 64) -> list[int]:
    [tree] = source.draft([s], limit)
    assert [node.parent for node in tree] == [*range(ROOT, len(tree) - 1)]
    assert [node.depth for node in tree] == [*range(1, len(tree) + 1)]
    assert all(node.source == "lookup" for node in tree)
    path_probabilities = [node.path_probability for node in tree]
    assert path_probabilities == sorted(path_probabilities, reverse=True)
    assert all(0 <= chance <= 1 for chance in path_probabilities)
    return [node.token for node in tree]


def common_suffix(tokens: list[int], place: int) -> int:
    """How many tokens before `place` are the last ones, up to MAX_MATCH."""
    length = 0
    while length < min(place, MAX_MATCH) and tokens[place - 1 - length] == tokens[len(tokens) - 1 - length]:
        length += 1
    return length


def test_what_followed_the_last_tokens_before_is_drafted() -> None:
    assert drafted(LookupSource(), sequence([1, 2, 3, 4, 5, 9, 2, 3]), 3) == [4, 5, 9]


def test_nothing_earlier_nothing_drafted() -> None:
    assert drafted(LookupSource(), sequence([1, 2, 3])) == []
    assert drafted(LookupSource(), sequence([1])) == []


def test_the_longest_match_wins_and_among_equals_the_most_recent() -> None:
    assert drafted(LookupSource(), sequence([1, 2, 3, 70, 5, 2, 3, 80, 1, 2, 3]), 1) == [70]
    assert drafted(LookupSource(), sequence([2, 3, 70, 2, 3, 80, 2, 3]), 1) == [80]


def test_repetition_is_continued_past_what_is_written() -> None:
    assert drafted(LookupSource(), sequence([8, 4, 5, 4, 5]), 6) == [4, 5, 4, 5, 4, 5]


def test_never_more_than_asked_for_nor_than_is_ever_worth_it() -> None:
    s = sequence([*range(50), *range(10)])
    assert len(drafted(LookupSource(), s, 3)) == 3
    assert len(drafted(LookupSource(), s)) == MAX_DRAFTS
    assert drafted(LookupSource(), s, 0) == []


def test_drafts_below_the_least_path_probability_are_left_out() -> None:
    source = LookupSource()
    source.min_path_probability = 0.5
    assert drafted(source, sequence([1, 2, 9, 9, 8, 2])) == [], "a match of one token"
    assert len(drafted(source, sequence([*range(50), *range(10)]))) in range(2, MAX_DRAFTS)


@pytest.mark.parametrize("seed", range(20))
def test_as_the_sequence_grows_it_finds_what_a_search_from_scratch_finds(seed: int) -> None:
    rng, source = random.Random(seed), LookupSource()
    tokens = [rng.randrange(6) for _ in range(5)]
    s = sequence(tokens)
    for _ in range(80):
        drafted(source, s)
        length, place, others = s.source_state[source].index.longest_match()
        earlier = [at for at in range(1, len(tokens)) if common_suffix(tokens, at) >= 2][-CANDIDATES:]
        if earlier:
            assert length == common_suffix(tokens, place) == max(common_suffix(tokens, at) for at in earlier)
            assert sorted([place, *others]) == earlier
        else:
            assert length == (tokens[-1] in tokens[:-1])
            assert not others
            assert not length or tokens[place - 1] == tokens[-1]
        new = [rng.randrange(6) for _ in range(rng.randint(1, 4))]
        emit(s, *new)
        tokens += new


def rate(source: LookupSource, match: int, kind: int = ALONE, sampled: bool = False) -> float:
    return source._rates[sampled][kind][CELL[match]].value


def trials(source: LookupSource) -> dict[tuple[int, int], float]:
    """By kind and length of match, where any were counted."""
    start = LookupSource()
    return {
        (kind, length): own._trials - first._trials
        for kind, (owns, firsts) in enumerate(zip(source._rates[False], start._rates[False], strict=True))
        for length, own, first in zip(LENGTHS, owns, firsts, strict=True)
        if own._trials != first._trials
    }


def test_prices_rise_with_the_match_and_with_agreement() -> None:
    assert all(len(kind) == len(LENGTHS) and list(kind) == sorted(kind) for kind in PRIOR)
    for length in range(2, MAX_MATCH):
        source = LookupSource()
        assert rate(source, length, DISPUTED) < rate(source, length, ALONE) < rate(source, length, AGREED)


def test_a_draft_that_holds_makes_the_match_longer() -> None:
    """So its followers are priced as those of a longer match."""
    source = LookupSource()
    [tree] = source.draft([sequence([*range(100), *range(5)])], 12)
    chances = [
        node.path_probability / before
        for node, before in zip(tree[1:], [n.path_probability for n in tree], strict=False)
    ]
    assert tree[0].path_probability == pytest.approx(rate(source, 5))
    assert chances == pytest.approx([rate(source, 5 + depth) for depth in range(1, 12)])


@pytest.mark.parametrize(
    ("earlier", "kind"),
    [
        ([1, 2, 3], ALONE),
        ([1, 2, 3, 8, 1, 2, 3], AGREED),
        ([1, 2, 4, 8, 1, 2, 3], DISPUTED),
        ([1, 2, 4, 8, 1, 2, 3, 8, 1, 2, 3], ALONE),
    ],
)
def test_other_places_raise_or_lower_the_price(earlier: list[int], kind: int) -> None:
    source = LookupSource()
    [tree] = source.draft([sequence([*earlier, 9, 1, 2])], 1)
    assert tree[0].token == 3
    assert tree[0].path_probability == rate(source, 2, kind)


@pytest.mark.parametrize("period", range(1, 6))
def test_a_loop_is_priced_as_agreed_however_far(period: int) -> None:
    """Places that run into the end of the text go on as the copy does."""
    source = LookupSource()
    tokens = [*range(1, period + 1)] * 4
    [tree] = source.draft([sequence([90, 91, *tokens])], MAX_DRAFTS)
    longest = len(tokens) - period
    wanted = [rate(source, min(longest + depth, MAX_MATCH), AGREED) for depth in range(MAX_DRAFTS)]
    assert [node.path_probability for node in tree] == pytest.approx(np.cumprod(wanted).tolist())


def test_a_copy_that_runs_into_itself_is_scored_by_what_came() -> None:
    source, s = LookupSource(), sequence([8, 4, 5, 4, 5])
    assert drafted(source, s, 6) == [4, 5, 4, 5, 4, 5]
    emit(s, 4, 5, 4, 9)
    drafted(source, s, 6)
    hit, miss = trials(source)[ALONE, 2], 1 - PRIOR_TRIALS / WINDOW
    assert hit == pytest.approx(miss)
    assert sorted(trials(source)) == [(ALONE, length) for length in (2, 3, 4, 5)]
    assert rate(source, 4) > PRIOR[ALONE][3]
    assert rate(source, 5) < PRIOR[ALONE][4]


def test_a_failed_step_that_is_run_again_counts_nothing() -> None:
    source, s = LookupSource(), sequence([1, 2, 3, 4, 1, 2])
    assert drafted(source, s) == drafted(source, s)
    assert not trials(source)


def test_never_more_than_may_be_emitted_beside_the_models_own() -> None:
    assert len(drafted(LookupSource(), sequence([1, 2, 3, 4, 1, 2], max_tokens=4))) == 3
    assert drafted(LookupSource(), sequence([1, 2, 3, 4, 1, 2], max_tokens=1)) == []


def test_only_places_that_went_along_so_far_are_heard_further_on() -> None:
    source = LookupSource()
    tokens = [7, 1, 2, 3, 4, 50, 8, 1, 2, 3, 4, 60, 9, 1, 2]
    [tree] = source.draft([sequence(tokens)], 3)
    assert [node.token for node in tree] == [3, 4, 60]
    kinds = [AGREED, AGREED, DISPUTED]
    wanted = np.cumprod([rate(source, 2 + depth, kind) for depth, kind in enumerate(kinds)])
    assert [node.path_probability for node in tree] == pytest.approx(wanted.tolist())


def test_wrong_guesses_lower_the_price_of_such_matches_alone() -> None:
    source = LookupSource()
    for i in range(60):
        s = sequence([1, 2, 3 + i, 2])  # a match of one token
        drafted(source, s)
        emit(s, 1000 + i)
        drafted(source, s)
    assert rate(source, 1) < PRIOR[ALONE][0] / 2
    assert set(trials(source)) == {(ALONE, 1)}


def test_guesses_are_scored_by_what_was_emitted_though_never_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count, counted = HitRate.count, []

    def counting(rate: HitRate, hit: bool) -> None:
        counted.append(hit)
        count(rate, hit)

    monkeypatch.setattr(HitRate, "count", counting)
    source = LookupSource()
    s = sequence([*range(300), *range(3)])
    for token in range(3, 200):
        drafted(source, s)
        emit(s, token)  # one at a time, as in plain decoding
    assert rate(source, MAX_MATCH) > PRIOR[ALONE][-1]
    assert counted == [True] * 196, "each token once; the last is not looked at yet"


def test_a_guess_counts_up_to_its_first_wrong_token_and_no_further() -> None:
    source = LookupSource()
    s = sequence([1, 2, 3, 4, 5, 6, 1, 2])
    drafted(source, s, 4)
    emit(s, 3, 4, 99)
    drafted(source, s, 4)
    assert trials(source) == pytest.approx(
        {(ALONE, length): 1 - PRIOR_TRIALS / WINDOW for length in (2, 3, 4)}
    )
    assert rate(source, 2) > PRIOR[ALONE][1]
    assert rate(source, 3) > PRIOR[ALONE][2]
    assert rate(source, 4) < PRIOR[ALONE][3]


def test_a_request_that_does_not_repeat_itself_soon_gets_dearer_guesses() -> None:
    source = LookupSource()
    source._rates[False][ALONE][0] = HitRate(0.7)
    repeating, rambling = sequence([1, 2, 9, 2]), sequence([1, 2, 9, 2])
    for i in range(24):
        for s, token in ((repeating, None), (rambling, 1000 + i)):
            [tree] = source.draft([s], 1)
            emit(s, tree[0].token if token is None and tree else token or 5, 7, 2)
    chances = [tree[0].path_probability for tree in source.draft([repeating, rambling], 1)]
    assert chances[1] < chances[0] / 2


def test_sampled_and_greedy_requests_have_their_own_prices() -> None:
    source = LookupSource()
    for i in range(50):
        s = sequence([1, 2, 3 + i, 2], temperature=1.0)
        drafted(source, s)
        emit(s, 1000 + i)
        drafted(source, s)
    assert rate(source, 1) == PRIOR[ALONE][0]
    assert rate(source, 1, sampled=True) < rate(source, 1)


def test_ended_sequences_are_forgotten() -> None:
    source, s = LookupSource(), sequence([1, 2, 3, 1])
    drafted(source, s)
    kept = weakref.ref(s)
    del s
    gc.collect()
    assert kept() is None


def test_it_goes_on_from_what_is_expected() -> None:
    source, s = LookupSource(), sequence([1, 2, 3, 4, 5, 9])
    s.expected = chain([2, 3], "grammar", 0.5)
    [tree] = source.draft([s], 4)
    assert tree[:2] == s.expected
    assert [(node.token, node.parent, node.depth, node.source) for node in tree[2:]] == [
        (4, 1, 3, "lookup"),
        (5, 2, 4, "lookup"),
    ]
    assert all(node.path_probability < 0.5 for node in tree[2:])
    assert source.draft([s], 2) == [[]], "there is no room beyond what is expected"
    s.expected = chain([77, 78], "grammar")
    assert source.draft([s], 4) == [[]]


@pytest.mark.parametrize("comes", [True, False])
def test_a_guess_after_what_did_not_come_is_not_counted(comes: bool) -> None:
    source, s = LookupSource(), sequence([1, 2, 3, 4, 5, 9])
    s.expected = chain([2, 3], "grammar")
    source.draft([s], 4)
    emit(s, *([2, 3, 4] if comes else [2, 4, 4]))
    s.expected = []
    before = s.source_state[source].record.hits
    source.draft([s], 4)
    assert (s.source_state[source].record.hits > before) == comes
