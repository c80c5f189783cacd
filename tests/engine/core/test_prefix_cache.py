"""Prefixes that are computed once: what is cached and goes first, and who takes them from whom."""

from __future__ import annotations

import numpy as np
import pytest

from engine.core.layouts import LaneLayout
from engine.core.prefix_cache import MIN_KEPT, MIN_SHARED, CachedPrefix, PrefixCache, common_prefix, head
from engine.llama.model import Tokens
from engine.llama.saved_cells import SavedCells
from tests.engine.helpers.shadow import ShadowContext
from tests.engine.helpers.steps import Steps, words

LONG = MIN_SHARED + 4


def tokens(*values: int) -> Tokens:
    return np.array(values, dtype=np.int32)


def prompt(word: int, length: int = LONG) -> Tokens:
    return np.full(length, word, dtype=np.int32)


def entry(word: int, nbytes: int = 10, length: int = LONG) -> CachedPrefix:
    layout = LaneLayout(ShadowContext(64, streams=1), lanes=1, cells=64)  # type: ignore[arg-type]
    return CachedPrefix(prompt(word, length), SavedCells(np.zeros(nbytes, dtype=np.uint8), 1, 0), layout)


def words_of(cache: PrefixCache) -> list[int]:
    return [int(one.tokens[0]) for one in cache]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((), (), 0),
        ((1, 2), (), 0),
        ((1, 2, 3), (1, 2, 3), 3),
        ((1, 2, 3), (1, 2, 4), 2),
        ((1, 2), (1, 2, 3), 2),
        ((5, 2, 3), (1, 2, 3), 0),
        ((1, 9, 3), (1, 2, 3), 1),
    ],
)
def test_common_prefix(a: tuple[int, ...], b: tuple[int, ...], expected: int) -> None:
    assert common_prefix(tokens(*a), tokens(*b)) == common_prefix(tokens(*b), tokens(*a)) == expected


def test_prompts_meet_by_their_first_tokens_alone() -> None:
    a = np.concatenate([prompt(1, MIN_SHARED), tokens(5)])
    b = np.concatenate([prompt(1, MIN_SHARED), tokens(6, 7)])
    assert head(a) == head(b)
    assert head(a) != head(a[1:])
    assert head(a) != head(a[: MIN_SHARED - 1])


# The cache


@pytest.mark.parametrize(("nbytes", "kept"), [(50, [1]), (51, [])])
def test_an_entry_larger_than_the_budget_is_not_kept(nbytes: int, kept: list[int]) -> None:
    cache = PrefixCache(50)
    cache.insert(entry(1, nbytes))
    assert words_of(cache) == kept
    assert cache.nbytes == sum(nbytes for _ in kept)


def test_the_oldest_goes_first_and_as_many_as_must() -> None:
    cache = PrefixCache(30)
    for word in range(3):
        cache.insert(entry(word))
    cache.insert(entry(3))
    assert words_of(cache) == [1, 2, 3]
    cache.insert(entry(4, 20))
    assert words_of(cache) == [3, 4]
    assert (len(cache), cache.nbytes) == (2, 30)


def test_an_entry_in_use_outlives_thousands_that_came_once() -> None:
    cache = PrefixCache(30)
    instruction = entry(0)
    cache.insert(instruction)
    cache.use(instruction)
    for word in range(1, 3000):
        cache.insert(entry(word))
    assert words_of(cache) == [0, 2998, 2999]


def test_of_used_entries_the_least_recently_used_goes_first() -> None:
    cache = PrefixCache(30)
    entries = [entry(word) for word in range(3)]
    for one in entries:
        cache.insert(one)
    for one in (entries[1], entries[0], entries[2], entries[1]):
        cache.use(one)
    cache.insert(entry(3, 20))
    assert words_of(cache) == [0, 2, 1], "one that was never used itself goes before them"
    newest = entry(4, 20)
    newest.used = True
    cache.insert(newest)
    assert words_of(cache) == [1, 4]


def test_the_longest_common_prefix_is_found() -> None:
    cache = PrefixCache(1000)
    for one in (entry(1, length=20), entry(1, length=40), entry(1, length=30), entry(2, length=90)):
        cache.insert(one)
    for wanted, found in [(25, 25), (35, 35), (60, 40)]:
        best, length = cache.longest(prompt(1, wanted))
        assert best is not None
        assert length == found
        assert common_prefix(best.tokens, prompt(1, wanted)) == found
    assert cache.longest(prompt(3, 50)) == (None, 0)


def test_what_is_worth_keeping() -> None:
    cache = PrefixCache(100)
    assert not cache.wants(prompt(1, MIN_KEPT - 1))
    assert cache.wants(prompt(1, MIN_KEPT))
    cache.insert(entry(1, length=50))
    assert not cache.wants(prompt(1, 50))
    assert not cache.wants(prompt(1, 40)), "covered by a longer one"
    assert not cache.wants(prompt(1, 50 + MIN_KEPT - 1)), "too little is new"
    assert cache.wants(prompt(1, 50 + MIN_KEPT))
    assert not PrefixCache(0).wants(prompt(1, 50))


def test_an_entry_that_has_no_room_displaces_no_other() -> None:
    cache = PrefixCache(30)
    cache.insert(entry(1))
    cache.insert(entry(2, 31))
    assert words_of(cache) == [1]


# Sharing between running requests


def test_a_request_with_the_prefix_of_one_in_prefill_waits_for_it_and_lets_others_by() -> None:
    steps = Steps(chunk_rows=20)
    steps.add("first", words((1, 60), (2, 5)), max_tokens=30)
    steps.step()
    second = steps.add("second", words((1, 60), (3, 5)))
    other = steps.add("other", words((7, 5)), max_tokens=30)
    for _ in range(2):
        steps.step()
        assert steps.running == ["first", "other"]
    steps.step()
    assert steps.running == ["first", "other", "second"]
    assert (second.cached, second.shared, other.cached) == (60, 60, 0)
    steps.finish()


@pytest.mark.parametrize(("cached_tokens", "kept", "copied"), [(500, 1, 0), (0, 0, 3)])
def test_lanes_share_by_the_prefix_cache_or_by_copies_without_one(
    cached_tokens: int, kept: int, copied: int
) -> None:
    """A copy of a lane copies all of its cells."""
    steps = Steps(cached_tokens=cached_tokens)
    steps.add("a", words((1, 60), (2, 4)), max_tokens=30)
    steps.step()
    takers = [steps.add(str(i), words((1, 60), (i, 5)), max_tokens=30) for i in range(3, 6)]
    steps.step()
    assert [s.cached for s in takers] == [60] * 3
    assert len(steps.kept) == kept
    assert [call[0] for call in steps.streams.calls].count("copy_stream") == copied
    assert [call[0] for call in steps.streams.calls].count("save") == kept
    steps.finish()


def test_in_the_shared_cache_a_prefix_takes_no_cells_of_its_own() -> None:
    steps = Steps(lane=0)
    first = steps.add("first", words((1, 60), (2, 4)), max_tokens=30)
    steps.step()
    second = steps.add("second", words((1, 60), (3, 5)), max_tokens=30)
    steps.step()
    assert second.cached == 60
    assert ("share", 0, 1, 60) in steps.memory.calls
    assert steps.memory.used == first.computed + second.computed - 60
    steps.end(first)
    assert steps.memory.used == second.computed, "what both had stays for the other"
    steps.finish()


@pytest.mark.parametrize("lane", [0, 100])
def test_many_with_one_prefix_compute_it_once(lane: int) -> None:
    steps = Steps(lane=lane, slots=8, chunk_rows=20)
    sequences = [steps.add(str(i), words((1, 40), (i + 2, 3)), max_tokens=4) for i in range(8)]
    steps.finish()
    assert [s.cached for s in sequences] == [0] + [40] * 7


def test_the_last_prompt_token_is_never_shared() -> None:
    steps = Steps()
    steps.add("a", words((1, 40)))
    steps.step()
    same = steps.add("b", words((1, 40)))
    steps.step()
    assert same.cached == 39
    steps.finish()


@pytest.mark.parametrize(("common", "cached"), [(MIN_SHARED - 1, 0), (MIN_SHARED, MIN_SHARED)])
def test_short_prefixes_are_not_worth_it(common: int, cached: int) -> None:
    steps = Steps()
    steps.add("a", words((1, common), (2, 9)), max_tokens=20)
    steps.step()
    b = steps.add("b", words((1, common), (3, 9)))
    steps.step()
    assert b.cached == cached
    steps.finish()


def test_a_request_does_not_wait_for_a_few_tokens_more() -> None:
    steps = Steps(chunk_rows=40)
    steps.add("a", words((1, 39 + MIN_SHARED)), max_tokens=20)
    steps.step()
    b = steps.add("b", words((1, 39 + MIN_SHARED), (2, 5)))
    steps.step()
    assert b.cached == 40, "15 more tokens would have been there a step later"
    steps.finish()


@pytest.mark.parametrize(
    ("giver", "taker", "movable", "cached"),
    [
        (50, 10, True, 40),  # from the shared cache into a lane
        (10, 50, True, 40),  # from a lane into the shared cache
        (50, 10, False, 0),
        (10, 50, False, 0),
        (50, 50, False, 40),
        (10, 10, False, 40),
        (70, 10, True, 0),  # all its cells together are more than a lane has
    ],
)
def test_a_prefix_of_a_running_request_in_the_other_layout(
    giver: int, taker: int, movable: bool, cached: int
) -> None:
    steps = Steps(lane=100, chunk_rows=200, cached_tokens=0, movable=movable)
    steps.add("a", words((1, 40), (2, giver)), max_tokens=30)
    steps.step()
    b = steps.add("b", words((1, 40), (3, taker)), max_tokens=30)
    steps.step()
    assert steps.layouts == ["lane" if rest == 10 else "shared" for rest in (giver, taker)]
    assert b.cached == cached
    steps.finish()


def test_a_giver_may_end_before_its_taker() -> None:
    steps = Steps(lane=0, cached_tokens=0)
    giver = steps.add("a", words((1, 40)), max_tokens=20)
    steps.step()
    taker = steps.add("b", words((1, 40), (2, 3)), max_tokens=20)
    steps.step()
    assert taker.cached == 39 + 1
    steps.end(giver)
    assert steps.memory.used == taker.computed
    steps.finish()


def test_a_recomputed_request_does_not_count_what_it_once_shared() -> None:
    """cached is what was not computed; computed anew without its source, that is nothing."""
    steps = Steps(cached_tokens=0)
    giver = steps.add("a", words((1, 40)), max_tokens=20)
    steps.step()
    taker = steps.add("b", words((1, 40), (2, 5)), max_tokens=20)
    steps.step()
    assert taker.cached == 40
    steps.end(giver)
    steps.step(fails=True)
    steps.step()
    assert (taker.computed, taker.cached) == (46, 0)
    steps.finish()


def test_recomputing_what_was_shared_does_not_overflow_the_cache() -> None:
    steps = Steps(150, lane=0)
    steps.add("a", words((1, 60)), max_tokens=10)
    steps.step()
    steps.add("b", words((1, 60), (2, 5)), max_tokens=10)
    steps.step()
    assert steps.running == ["a", "b"]
    steps.step(fails=True)
    steps.finish()
    assert sorted(steps.ended) == ["a", "b"]


# From ended requests


def test_without_sharing_nothing_is_shared_or_kept() -> None:
    steps = Steps(sharing=False)
    sequences = [steps.add(str(i), words((1, 40))) for i in range(3)]
    steps.finish()
    assert [s.cached for s in sequences] == [0, 0, 0]
    assert steps.kept == []
    assert "save" not in {call[0] for call in steps.streams.calls}


@pytest.mark.parametrize(
    ("ended", "later", "movable", "cached"),
    [
        (10, 10, True, 40),
        (10, 10, False, 40),
        (50, 50, False, 40),
        (10, 70, True, 40),
        (50, 10, True, 40),
        (10, 70, False, 0),
        (50, 10, False, 0),
        (70, 10, True, 0),  # saved cells come back as a whole, and are more than a lane has
    ],
)
def test_an_ended_prompt_is_kept_and_shared_later(ended: int, later: int, movable: bool, cached: int) -> None:
    steps = Steps(lane=100, movable=movable)
    steps.add("a", words((1, 40), (2, ended)), max_tokens=30)
    steps.finish()
    assert steps.kept == [words((1, 40), (2, ended))]
    b = steps.add("b", words((1, 40), (3, later)), max_tokens=30)
    steps.step()
    assert steps.layouts == ["lane" if later == 10 else "shared"]
    assert (b.cached, b.shared) == (cached, cached)
    steps.finish()


def test_saved_cells_that_do_not_fit_beside_those_in_use_are_not_used() -> None:
    steps = Steps(200, lane=0, chunk_rows=200)
    steps.add("a", words((1, 80)), max_tokens=2)
    steps.finish()
    steps.add("b", words((2, 125)), max_tokens=2)
    steps.step()
    c = steps.add("c", words((1, 40), (3, 5)), max_tokens=2)
    steps.step()
    assert c.cached == 0
    steps.finish()
    d = steps.add("d", words((1, 40), (4, 5)), max_tokens=2)
    steps.finish()
    assert d.cached == 40, "once there is room, they are"


def test_saved_cells_that_cannot_be_restored_are_computed_again() -> None:
    steps = Steps()
    steps.add("a", words((1, 40)), max_tokens=2)
    steps.finish()
    steps.add("other", words((3, 40)), max_tokens=2)
    steps.finish()
    steps.streams.refuses = lambda: True
    b = steps.add("b", words((1, 40), (2, 3)), max_tokens=2)
    steps.finish()
    assert (b.cached, b.shared, steps.ended) == (0, 0, ["a", "other", "b"])


def test_a_prefix_that_was_used_stays_longer() -> None:
    steps = Steps(cached_tokens=100)
    for word in (1, 2):
        steps.add(str(word), words((word, 40)), max_tokens=2)
        steps.finish()
    steps.add("taker", words((1, 40), (9, 3)), max_tokens=2)
    steps.finish()
    steps.add("third", words((3, 40)), max_tokens=2)
    steps.finish()
    assert words((1, 40)) in steps.kept
    assert words((2, 40)) not in steps.kept
    assert words((3, 40)) in steps.kept


def test_while_others_wait_only_the_proven_part_of_a_prompt_is_kept() -> None:
    steps = Steps(lane=0, slots=2)
    a = steps.add("a", words((1, 40), (2, 23)), max_tokens=20)
    steps.step()
    b = steps.add("b", words((1, 40), (3, 23)), max_tokens=20)
    steps.step()
    assert (a.shared, b.shared) == (40, 40)
    c = steps.add("c", words((4, 40)), max_tokens=20)
    steps.end(a)
    assert steps.kept == [words((1, 40))]
    steps.step()
    steps.add("d", words((5, 3)), max_tokens=20)
    steps.end(c)
    assert steps.kept == [words((1, 40))], "nobody ever shared with c"
    steps.finish()


def test_of_a_prompt_that_ends_in_prefill_the_computed_part_is_kept() -> None:
    steps = Steps(chunk_rows=40)
    long = steps.add("a", words((1, 60)))
    steps.step()
    steps.end(long)
    assert steps.kept == [words((1, 40))]
