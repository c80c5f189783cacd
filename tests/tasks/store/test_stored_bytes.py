"""Bytes of Redis that one owner's records take: counted exactly, bounded, and given back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tasks.base.errors import StorageLimit
from tasks.batches.store import BatchStore
from tasks.records.api_key import NOBODY, Limits
from tasks.records.batch import NewBatch
from tasks.records.job import NewJob, Status
from tasks.records.packed_line import Line
from tasks.records.webhook import DeliveryStatus
from tasks.records.window import Group, LineEnd, NewWindow, WindowClaim
from tasks.schema.openai_requests import CHAT
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tasks.store.scripts import Argument
from tasks.store.windows import WindowStore
from tasks.webhooks.store import Attempt, DeliveryStore
from tests.support.servers import RedisServer, fast_settings
from tests.tasks.helpers.outbox import ALL, BAD, GOOD, make_due, take
from tests.tasks.helpers.records import batch_store, claimed

MOST = 100_000  # bytes


@pytest.fixture
def owner(store: JobStore) -> str:
    return KeyStore(store.db).create("a", Limits(max_stored_bytes=MOST))[0].id


@pytest.fixture
def other(store: JobStore) -> str:
    return KeyStore(store.db).create("b", Limits(max_stored_bytes=MOST))[0].id


@pytest.fixture
def batches(store: JobStore) -> BatchStore:
    return batch_store(store)


def new(owner: str, prompt: str = "hi", tokens: int = 0, **fields: Any) -> NewJob:
    return NewJob(request={"prompt": prompt, "seed": 1, "max_tokens": tokens}, owner=owner, **fields)


def end(store: JobStore, job_id: str, text: str = "") -> None:
    claim = claimed(store, job_id)
    assert store.finish(job_id, claim.fencing_token, Status.SUCCEEDED, {"text": text})


def records(store: JobStore, owner: str) -> Iterator[str]:
    for kind in ("job", "batch", "hook", "shared", "win"):
        for key in store.db.redis.scan_iter(f"{store.db.prefix}{kind}:*", _type="hash"):
            if store.db.redis.hget(key, "owner") == owner or kind == "shared":
                yield key


def counted(store: JobStore, owner: str) -> int:
    """What is counted for the owner, which is the sum of what each record says."""
    held = int(store.db.redis.hget(f"{store.db.prefix}stored_bytes", owner) or 0)
    parts = [store.db.redis.hmget(key, "stored", "result_bytes") for key in records(store, owner)]
    assert held == sum(int(part or 0) for record in parts for part in record)
    return held


def test_records_of_one_owner(store: JobStore, owner: str, other: str) -> None:
    first = store.create(new(owner, "x" * 60_000))
    with pytest.raises(StorageLimit, match="may take 100,000 bytes"):
        store.create(new(owner, "x" * 60_000))
    store.create(new(other, "x" * 60_000))
    store.create(new(owner, "x" * 30_000))
    store.cancel(first.id)
    with pytest.raises(StorageLimit):
        store.create(new(owner, "x" * 30_000))
    store.delete(first.id)
    store.create(new(owner, "x" * 30_000))
    assert 60_000 < counted(store, owner) < 70_000


def test_owners_without_a_limit_of_their_own(redis_server: RedisServer) -> None:
    store = JobStore(fast_settings(redis_server, max_stored_bytes=10_000))
    for owner in (NOBODY, KeyStore(store.db).create("a", Limits())[0].id):
        store.create(new(owner, "x" * 7000))
        with pytest.raises(StorageLimit):
            store.create(new(owner, "x" * 7000))
    store.close()


def test_results_are_reserved_and_then_counted_as_they_are(store: JobStore, owner: str) -> None:
    job = store.create(new(owner, tokens=5000))
    before = counted(store, owner)
    assert before > 40_000
    end(store, job.id, "y" * 10_000)
    assert counted(store, owner) == before - 40_000 + len('{"text":""}') + 10_000
    asked = {"prompt": "x", "max_tokens": 800, "logprobs": 0, "return_token_ids": True}
    store.create(NewJob(request=asked, owner=owner))
    assert counted(store, owner) > 800 * (8 + 7 + 80) + 10_000
    with pytest.raises(StorageLimit):
        store.create(NewJob(request=asked, owner=owner))


def test_results_count_even_beyond_the_limit(store: JobStore, owner: str) -> None:
    """What was accepted is kept, whatever it takes."""
    job = store.create(new(owner))
    end(store, job.id, "y" * MOST)
    assert store.get(job.id).result == {"text": "y" * MOST}
    with pytest.raises(StorageLimit):
        store.create(new(owner))
    store.delete(job.id)
    assert counted(store, owner) == 0
    store.create(new(owner))


def test_jobs_made_together_count_what_they_share_once(store: JobStore, owner: str) -> None:
    jobs = store.create_all(new(owner, "x" * 50_000), [{"seed": n} for n in range(10)])
    assert 50_000 < counted(store, owner) < 90_000
    with pytest.raises(StorageLimit):
        store.create_all(new(owner, "x" * 50_000), [{"seed": n} for n in range(10)])
    for job in jobs[1:]:
        store.cancel(job.id)
        store.delete(job.id)
    assert counted(store, owner) > 50_000
    store.cancel(jobs[0].id)
    store.delete(jobs[0].id)
    assert counted(store, owner) == 0


def test_deliveries_that_wait_for_a_receiver(store: JobStore, owner: str, outbox: DeliveryStore) -> None:
    for _ in range(6):  # each tells 10,000 bytes
        job = store.create(new(owner, webhook=ALL))
        end(store, job.id, "y" * 10_000)
        store.delete(job.id)
    with pytest.raises(StorageLimit):
        store.create(new(owner, "x" * 30_000, webhook=ALL))
    before = counted(store, owner)
    [due, *_] = take(outbox)
    outbox.done(due, BAD, DeliveryStatus.PENDING, 60.0)
    assert before < counted(store, owner) < before + 500, "an attempt is noted"
    make_due(store)
    for due in take(outbox):
        outbox.done(due, GOOD, DeliveryStatus.DELIVERED)
    store.db.redis.zadd(f"{store.db.prefix}hook_expiry", {d.id: 1 for d in outbox.page(owner, 100)[0]})
    take(outbox)
    assert counted(store, owner) == 0, "their time has passed"
    store.create(new(owner, "x" * 30_000, webhook=ALL))


def test_batches_count_and_their_lines_are_never_refused(
    store: JobStore, owner: str, batches: BatchStore
) -> None:
    batch = batches.create(
        NewBatch(endpoint=CHAT, input_file_id="file_x", owner=owner, metadata={"a": "b" * 500})
    )
    empty = counted(store, owner)
    assert empty > 4000
    batches.lead("me", {"": 64})
    request = json.dumps({"prompt": "x" * 60_000, "max_tokens": 9})
    errors = [{"code": "x", "message": "y" * 1000}]
    batches.validated("me", batch.id, chunks=1, lines=2, invalid={}, errors=errors, model=None)
    packed = [Line(n, f"c{n}", "", request, 9).packed(n) for n in (1, 2)]
    windows = WindowStore(store.db)
    assert windows.send("me", batch, (1, 0), [NewWindow("", packed)])
    assert counted(store, owner) > 2 * 60_000
    with pytest.raises(StorageLimit):
        batches.create(NewBatch(endpoint=CHAT, input_file_id="file_x", owner=owner))
    [window_id] = batches.live(batch.id)
    claim = windows.claim(window_id, "w", "token")
    assert isinstance(claim, WindowClaim)
    ends = [LineEnd(n, Status.SUCCEEDED, "z" * 1000, 9) for n in (0, 1)]
    for number, group in enumerate(([], ends), 1):
        windows.advance([Group(window_id, claim.fencing_token, number, 2, group)])
    assert empty + 3000 < counted(store, owner) < empty + 4000, "its errors, and results"
    batches.segment_stored("me", batch.id, "part", batches.next_results("me", batch.id, 10))
    assert empty + 1000 < counted(store, owner) < empty + 2000, "its errors are kept"
    batches.finish("me", batch.id, "completed")
    assert batches.delete(batch.id, owner)
    assert counted(store, owner) == 0


def test_scripts_that_run_twice_count_once(
    store: JobStore, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = store.db.scripts.run

    def twice(name: str, *args: Argument) -> Any:
        once(name, *args)
        return once(name, *args)

    single = store.create(new(owner, idempotency_key="k", metadata={"a": "b"}, tokens=100))
    several = store.create_all(new(owner), [{"seed": 1}, {"seed": 2}])
    before = counted(store, owner)
    for job in (single, *several):
        store.cancel(job.id)
        store.delete(job.id)
    assert counted(store, owner) == 0

    monkeypatch.setattr(store.db.scripts, "run", twice)
    single = store.create(new(owner, idempotency_key="k", metadata={"a": "b"}, tokens=100))
    several = store.create_all(new(owner), [{"seed": 1}, {"seed": 2}])
    assert counted(store, owner) == before
    end(store, single.id, "done")
    for job in several:
        store.cancel(job.id)
    counted(store, owner)
    for job in (single, *several):
        once("jobs/delete", job.id, owner)
        once("jobs/delete", job.id, owner)
    assert counted(store, owner) == 0


def test_idempotency_keys_go_with_their_jobs_and_not_before(store: JobStore, owner: str) -> None:
    """Those of jobs that were refused or deleted would stay for a day each, counted by nobody."""
    job = store.create(new(owner, idempotency_key="k", body_hash="h"))
    with pytest.raises(StorageLimit):
        store.create(new(owner, "x" * MOST, idempotency_key="big", body_hash="h"))
    assert store.db.redis.keys(f"{store.db.prefix}idem:*") == [f"{store.db.prefix}idem:job:k"]
    store.cancel(job.id)
    store.delete(job.id)
    assert not store.db.redis.keys(f"{store.db.prefix}idem:*")


def test_a_record_of_an_earlier_release_was_never_counted(store: JobStore, owner: str) -> None:
    old = [store.create(new(owner)) for _ in range(2)]
    for job in old:
        store.db.redis.hdel(f"{store.db.prefix}job:{job.id}", "stored", "reserved", "note")
    store.db.redis.delete(f"{store.db.prefix}stored_bytes")
    kept = store.create(new(owner))
    before = counted(store, owner)
    end(store, old[0].id, "y" * 1000)
    store.delete(old[0].id)
    store.cancel(old[1].id)
    store.delete(old[1].id)
    assert counted(store, owner) == before
    store.cancel(kept.id)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt": "x" * 5000},
        {"metadata": {"a": "b"}},
        {"metadata": {f"key-{n}": f"value-{n}" for n in range(16)}},
        {"metadata": {"k" * 64 + str(n): "v" * 500 for n in range(16)}},
        {"idempotency_key": "k" * 255, "body_hash": "h" * 64},
        {"webhook": ALL},
    ],
)
def test_what_is_counted_is_about_what_redis_takes(
    store: JobStore, owner: str, fields: dict[str, Any]
) -> None:
    job = store.create(new(owner, **fields))
    end(store, job.id, "y" * 100)
    every = (key.removeprefix(store.db.prefix) for key in store.db.redis.scan_iter(f"{store.db.prefix}*"))
    keys = [f"{store.db.prefix}{key}" for key in every if not key.startswith("key")]
    taken = sum(store.db.redis.memory_usage(key, samples=0) for key in keys if not key.endswith("_bytes"))
    # Each index has its own fixed part here; the most that any record of this size takes is what is counted.
    assert counted(store, owner) / 3 < taken < counted(store, owner) * 1.5


def test_addresses_that_are_gone_are_few(store: JobStore, outbox: DeliveryStore, owner: str) -> None:
    """Each of another address: those that answered 410 first are forgotten."""
    gone = f"{store.db.prefix}hook_gone:{owner}"
    store.db.redis.zadd(gone, {f"{n:040x}": 1 + n for n in range(10_000)})
    job = store.create(new(owner, webhook=ALL))
    end(store, job.id)
    [due] = take(outbox)
    outbox.done(due, Attempt(0.01, 410), DeliveryStatus.DISABLED)
    assert store.db.redis.zcard(gone) == 10_000
    assert store.db.redis.zscore(gone, f"{0:040x}") is None
    again = store.create(new(owner, webhook=ALL))
    end(store, again.id)
    assert not take(outbox)
    [delivery, _] = outbox.page(owner, 10)[0]
    assert delivery.status is DeliveryStatus.DISABLED
