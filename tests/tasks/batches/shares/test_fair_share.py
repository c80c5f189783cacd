"""Shares: bounded, complete, fair by weight, and in order within an owner."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tasks.batches.fair_share import DEFERRED, Source, shares


def batch(owner: str, name: str, waiting: int, rank: float = 0.0) -> Source:
    return Source(owner, name, (rank,), waiting)


def by_owner(sent: Counter[Source]) -> Counter[str]:
    owners: Counter[str] = Counter()
    for source, count in sent.items():
        owners[source.owner] += count
    return owners


def test_a_small_owner_is_not_starved_by_a_large_one() -> None:
    large, small = batch("large", "a", 50_000), batch("small", "b", 10)
    assert by_owner(shares([large, small], {"large": 60}, 70, {})) == {"small": 10}
    assert by_owner(shares([large, small], {}, 70, {})) == {"small": 10, "large": 60}


def test_weights_are_shares() -> None:
    sent = shares([batch("heavy", "a", 1000), batch("light", "b", 1000)], {}, 40, {"heavy": 3.0})
    assert by_owner(sent) == {"heavy": 30, "light": 10}


def test_among_one_owners_batches_the_first_in_rank_goes_first() -> None:
    late, early = batch("a", "late", 10, rank=2.0), batch("a", "early", 4, rank=1.0)
    deferred = Source("a", DEFERRED, (float("-inf"),), 2)
    assert shares([late, early, deferred], {}, 9, {}) == {deferred: 2, early: 4, late: 3}


def test_what_is_outstanding_counts() -> None:
    sources = [batch("a", "a", 100), batch("b", "b", 100)]
    assert by_owner(shares(sources, {"a": 10, "b": 4}, 20, {})) == {"b": 6}
    assert not shares(sources, {"a": 15, "c": 5}, 20, {})


def test_with_more_owners_than_places_each_has_its_turn() -> None:
    sources = [batch(owner, owner, 1000) for owner in "abcdefgh"]
    in_flight: Counter[str] = Counter()
    served: dict[str, int] = {}
    turns: Counter[str] = Counter()
    for now in range(1, 81):
        sent = by_owner(shares(sources, in_flight, 3, {}, served))
        served.update(dict.fromkeys(sent, now))
        in_flight += sent
        turns += sent
        oldest = min(in_flight, key=lambda owner: served[owner])
        in_flight -= Counter({oldest: 1})
    assert len(turns) == 8
    assert max(turns.values()) - min(turns.values()) <= 1, turns


owners = st.sampled_from("abcd")


@given(
    st.lists(st.tuples(owners, st.integers(0, 30), st.integers(0, 5)), max_size=12),
    st.dictionaries(owners, st.integers(0, 20)),
    st.integers(0, 60),
    st.dictionaries(owners, st.sampled_from([0.5, 1.0, 2.0, 4.0])),
)
def test_shares_are_bounded_complete_and_fair(
    made: list[tuple[str, int, int]], in_flight: dict[str, int], capacity: int, weights: dict[str, float]
) -> None:
    sources = [batch(owner, str(i), waiting, rank) for i, (owner, waiting, rank) in enumerate(made)]
    sent = shares(sources, in_flight, capacity, weights)
    free = max(0, capacity - sum(in_flight.values()))
    assert sum(sent.values()) == min(free, sum(s.waiting for s in sources)), "no place stays empty"
    assert all(0 < count <= source.waiting for source, count in sent.items())
    owners_sent = by_owner(sent)
    for owner in owners_sent:
        mine = sorted((s for s in sources if s.owner == owner and s.waiting), key=lambda s: s.rank)
        full = [s for s in mine if sent[s] == s.waiting]
        assert [s.rank for s in mine[: len(full)]] == [s.rank for s in full], (
            "the first in rank are served first"
        )
        for other in {s.owner for s in sources} - {owner}:
            left = sum(s.waiting for s in sources if s.owner == other) - owners_sent[other]
            if left:  # who still waits had at least as much for its weight, but for one place
                mine_after = (in_flight.get(owner, 0) + owners_sent[owner] - 1) / weights.get(owner, 1.0)
                assert mine_after <= (in_flight.get(other, 0) + owners_sent[other]) / weights.get(other, 1.0)
