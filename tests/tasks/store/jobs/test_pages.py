"""Pages of jobs: their order, filters and bounds, and the indexes behind them."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.base.errors import JobNotFound
from tasks.records.job import Status
from tasks.store import jobs as store_module
from tasks.store.jobs import JobStore
from tests.tasks.helpers.records import claimed, new, queued

RESULT = {"text": "done"}


def test_pages_newest_first(store: JobStore) -> None:
    ids = [queued(store) for _ in range(5)]
    newest = ids[::-1]
    first = store.page(2)
    assert ([job.id for job in first.jobs], first.has_more) == (newest[:2], True)
    second = store.page(2, after=newest[1])
    assert ([job.id for job in second.jobs], second.has_more) == (newest[2:4], True)
    third = store.page(2, after=newest[3])
    assert ([job.id for job in third.jobs], third.has_more) == (newest[4:], False)
    assert store.page(5).has_more is False
    with pytest.raises(JobNotFound):
        store.page(2, after="job_none")


def test_a_page_of_large_records_ends_early(store: JobStore) -> None:
    large = "x" * 1_900_000
    ids = [queued(store, prompt) for prompt in ("small", large, large, large, 3 * large, "small")][::-1]
    pages, more = [], True
    while more:
        page = store.page(100, after=pages[-1][-1] if pages else None)
        pages.append([job.id for job in page.jobs])
        more = page.has_more
    assert pages == [ids[:1], ids[1:2], ids[2:4], ids[4:]]


def test_page_filters(store: JobStore) -> None:
    tagged = [queued(store, metadata={"run": "a", "n": str(n % 2)}) for n in range(6)]
    other = queued(store, metadata={"run": "a=b", "run=a": "b"})
    store.cancel(tagged[0])
    store.cancel(other)

    def found(**filters: object) -> list[str]:
        return [job.id for job in store.page(100, **filters).jobs]  # type: ignore[arg-type]

    assert found(metadata={"run": "a"}) == tagged[::-1]
    assert found(metadata={"run": "a", "n": "1"}) == [tagged[5], tagged[3], tagged[1]]
    assert found(status=Status.CANCELLED) == [other, tagged[0]]
    assert found(status=Status.CANCELLED, metadata={"run": "a"}) == [tagged[0]]
    assert found(metadata={"run": "a=b"}) == [other]
    assert found(metadata={"none": "x"}) == []
    assert found(metadata={"run": "a"}, after=tagged[2]) == [tagged[1], tagged[0]]


def test_page_over_many_that_do_not_fit(store: JobStore) -> None:
    """More than one chunk of the walk lies between two hits."""
    first = queued(store, metadata={"a": "1", "b": "1", "c": "1"})
    for _ in range(450):
        queued(store, metadata={"b": "1"})
        queued(store, metadata={"c": "1"})
    last = queued(store, metadata={"a": "1", "b": "1", "c": "1"})
    store.cancel(first)
    assert [job.id for job in store.page(10, metadata={"a": "1"}).jobs] == [last, first]
    assert [job.id for job in store.page(10, metadata={"b": "1", "c": "1"}).jobs] == [last, first]
    page = store.page(100, metadata={"b": "1"}, status=Status.QUEUED)
    assert (len(page.jobs), page.has_more) == (100, True)


@pytest.mark.parametrize(
    ("filters", "own"),
    [
        ({"metadata": {"a": "1"}}, 1),
        ({"status": Status.CANCELLED}, 1),
        ({"metadata": {"mine": "1", "a": "1"}}, 0),
        ({"metadata": {"mine": "1"}, "status": Status.CANCELLED}, 0),
        ({"metadata": {"theirs": "1"}}, 0),
    ],
)
def test_what_others_have_changes_nothing_in_the_work_of_a_page(
    store: JobStore, filters: dict[str, Any], own: int
) -> None:
    """In what Redis does, which is what takes time. own: jobs that are found."""
    for _ in range(20):
        queued(store, owner="key_me", metadata={"mine": "1"})
    store.cancel(queued(store, owner="key_me"))
    queued(store, owner="key_me", metadata={"a": "1"})

    def calls() -> dict[str, int]:
        store.db.redis.config_resetstat()
        assert len(store.page(10, owner="key_me", **filters).jobs) == own
        found = store.db.redis.info("commandstats")
        return {name: stats["calls"] for name, stats in found.items() if "config" not in name}

    calls()  # the script is loaded by now
    before = calls()
    for n in range(150):
        job = queued(store, owner="key_other", metadata={"a": "1", "mine": "1", "theirs": "1"})
        if n % 2:
            store.cancel(job)
    assert calls() == before


def test_one_call_looks_at_a_bounded_number_of_records(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that finds nothing in so many is empty, and the next goes on behind it."""
    monkeypatch.setattr(store_module, "LOOK_ENTRIES", 20)
    monkeypatch.setattr(store_module, "MOST_LOOKS", 3)
    both = {"a": "1", "b": "1"}
    first = queued(store, owner="key_me", metadata=both)
    others = [queued(store, owner="key_me", metadata={"a": "1"}) for _ in range(70)]
    for _ in range(71):
        queued(store, owner="key_me", metadata={"b": "1"})
    last = queued(store, owner="key_me", metadata=both)
    found: list[tuple[list[str], str | None]] = []
    more, after = True, None
    while more:
        page = store.page(10, after=after, metadata=both, owner="key_me")
        found.append(([job.id for job in page.jobs], page.last_id))
        more, after = page.has_more, page.last_id
    assert found == [
        ([last], others[61]),
        ([], others[31]),
        ([], others[1]),
        ([first], first),
    ]


def test_one_call_does_a_bounded_number_of_commands(store: JobStore) -> None:
    """However many jobs a key has, of however much metadata, and reads nothing of their metadata."""
    pairs = {f"{'k' * 60}{n:02}": "v" * 500 for n in range(16)}
    for n in range(10):
        one_of = {f"{'k' * 60}14": str(n % 2), f"{'k' * 60}15": str((n + 1) % 2)}
        made = new(owner="key_me", metadata={**pairs, **one_of})
        store.create_all(made, [{"seed": seed} for seed in range(100)])
    store.page(1, owner="key_me")  # the script is loaded by now
    indexes = len(pairs) + 1  # with that of the status
    ids = store_module.LOOK_ENTRIES // indexes
    for values, hits, calls in (("10", 1, 1), ("11", 0, 500 // ids + 1), ("1x", 0, 1)):
        asked = {**pairs, f"{'k' * 60}14": values[0], f"{'k' * 60}15": values[1]}
        store.db.redis.config_resetstat()
        assert len(store.page(1, Status.QUEUED, metadata=asked, owner="key_me").jobs) == hits
        stats = store.db.redis.info("commandstats")
        done = {name.removeprefix("cmdstat_"): found["calls"] for name, found in stats.items()}
        assert done["evalsha"] == calls
        assert "hmget" not in done
        assert done["zmscore"] <= (indexes - 1) * calls if values != "1x" else "zmscore" not in done
        assert sum(done.values()) <= calls * 4 * indexes


@pytest.mark.parametrize("owner", ["key_me", ""])
def test_no_index_keeps_a_job_that_is_gone(store: JobStore, owner: str) -> None:
    job_id = queued(store, owner=owner, metadata={"short": "1", "long": "x" * 500})
    indexes = set(store.db.redis.scan_iter(f"{store.db.prefix}*", _type="zset"))
    assert len([key for key in indexes if "meta:" in key]) == (4 if owner else 2)
    assert all(len(key) < 200 for key in indexes)
    claim = claimed(store, job_id)
    assert [job.id for job in store.page(1, Status.RUNNING, owner=owner or None).jobs] == [job_id]
    assert store.page(1, Status.QUEUED, owner=owner or None).jobs == ()
    assert store.finish(job_id, claim.fencing_token, Status.SUCCEEDED, result=RESULT)
    assert [job.id for job in store.page(1, Status.SUCCEEDED, owner=owner or None).jobs] == [job_id]
    store.delete(job_id)
    assert not list(store.db.redis.scan_iter(f"{store.db.prefix}*", _type="zset"))


def test_the_next_page_misses_none(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a look ends."""
    made = ({"a": str(n % 3), "b": str(n % 2)} for n in range(30))
    ids = [queued(store, owner="key_me", metadata=pairs) for pairs in made][::-1]
    for looked in range(1, 32):
        monkeypatch.setattr(store_module, "LOOK_ENTRIES", looked)
        for limit in (1, 4, 100):
            for owner in ("key_me", None):
                got: list[str] = []
                more, after = True, None
                while more:
                    page = store.page(limit, after=after, metadata={"a": "0", "b": "0"}, owner=owner)
                    assert len(page.jobs) <= limit
                    got += [job.id for job in page.jobs]
                    more, after = page.has_more, page.last_id
                assert got == ids[5::6]
