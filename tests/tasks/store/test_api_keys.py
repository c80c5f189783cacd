"""Keys in Redis: what is kept of them, and their limits, from both sides."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tasks.base.errors import BudgetSpent, KeyNotFound, LimitReached
from tasks.batches.store import BatchStore
from tasks.records.api_key import ApiKey, KeyStatus, Limits
from tasks.records.batch import Batch, NewBatch
from tasks.records.batch_work import Work
from tasks.records.job import NewJob, Priority, Status
from tasks.records.packed_line import Line
from tasks.records.window import Group, LineEnd, NewWindow, WindowClaim
from tasks.schema.openai_requests import CHAT
from tasks.store.api_keys import KeyStore, digest
from tasks.store.jobs import JobStore
from tasks.store.windows import WindowStore
from tests.support.servers import RedisServer, fast_settings
from tests.tasks.helpers.records import batch_store, claimed, queued

DAY_S = 24 * 3600


@pytest.fixture
def keys(store: JobStore) -> KeyStore:
    return KeyStore(store.db)


@pytest.fixture
def batches(store: JobStore) -> BatchStore:
    return batch_store(store)


def spent(keys: KeyStore, key: ApiKey) -> int:
    return next(found.tokens_today for found in keys.list() if found.id == key.id)


def jobs(keys: KeyStore, key: ApiKey) -> int:
    return next(found.jobs for found in keys.list() if found.id == key.id)


def end(store: JobStore, job_id: str, tokens: int) -> None:
    claim = claimed(store, job_id, token=job_id)
    result = {"text": "", "usage": {"total_tokens": tokens}}
    assert store.finish(job_id, claim.fencing_token, Status.SUCCEEDED, result)


def job(tokens: int, owner: str, **fields: object) -> NewJob:
    request = {"prompt": "hi", "seed": 1, "max_tokens": tokens}
    return NewJob(request=request, owner=owner, **fields)  # type: ignore[arg-type]


def test_a_secret_is_kept_nowhere(keys: KeyStore, store: JobStore) -> None:
    key, secret = keys.create("alice", Limits())
    assert secret.startswith("mq_")
    assert len(secret) > 40
    assert secret.endswith(key.shown[-4:])
    raw = secret.removeprefix("mq_")
    names = store.db.redis.keys(f"{store.db.prefix}*")
    kept = [str(store.db.redis.hgetall(name)) for name in names if store.db.redis.type(name) == "hash"]
    assert kept
    assert not any(raw in text for text in [*names, *kept])


def test_the_life_of_a_key(keys: KeyStore) -> None:
    assert keys.status() is KeyStatus.NEVER
    assert keys.admit("mq_x").status is KeyStatus.NEVER
    key, secret = keys.create("alice", Limits(tokens_per_day=5, weight=2.5))
    other, other_secret = keys.create("bob", Limits())
    assert secret != other_secret
    assert keys.list() == [key, other]
    assert key.limits == Limits(tokens_per_day=5, weight=2.5)
    found = keys.admit(secret)
    assert (found.status, found.key_id) == (KeyStatus.OK, key.id)
    assert keys.admit(secret + "x").status is KeyStatus.UNKNOWN
    assert keys.admit("").status is KeyStatus.UNKNOWN

    keys.revoke(key.id)
    assert keys.admit(secret).status is KeyStatus.UNKNOWN
    first_at = keys.list()[0].revoked_at
    assert first_at is not None
    keys.revoke(key.id)
    assert keys.list()[0].revoked_at == first_at, "a second time changes nothing"
    assert keys.admit(other_secret).status is KeyStatus.OK
    keys.revoke(other.id)
    assert keys.status() is KeyStatus.NONE
    for unknown in ("key_x", f"{key.id}:x", f"{key.id}\n", "*", "", "x" * 10_000):
        with pytest.raises(KeyNotFound, match=r"no API key with id .{0,110}$"):
            keys.revoke(unknown)


def test_a_key_whose_reply_was_lost_is_made_once(keys: KeyStore, store: JobStore) -> None:
    made, secret = keys.create("a", Limits())
    record = store.db.redis.hgetall(f"{store.db.prefix}key:{made.id}")
    fields = [value for name in record for value in (name, record[name]) if name not in ("id", "digest")]
    keys.revoke(made.id)
    store.db.scripts.run("keys/create", made.id, digest(secret), *fields)
    [listed] = keys.list()
    assert listed.revoked_at is not None, "it is not brought back"
    assert keys.admit(secret).status is KeyStatus.NONE


@pytest.mark.parametrize("limit", [1, 3, 7])
def test_requests_a_minute(keys: KeyStore, limit: int) -> None:
    key, secret = keys.create("a", Limits(requests_per_minute=limit))
    _, free = keys.create("b", Limits())
    for left in range(limit - 1, -1, -1):
        found = keys.admit(secret)
        assert (found.status, found.key_id) == (KeyStatus.OK, key.id)
        assert found.requests is not None
        assert (found.requests.limit, found.requests.left) == (limit, left)
        assert 0 < found.requests.reset_s <= 60
    refused = keys.admit(secret)
    assert refused.status is KeyStatus.LIMITED
    assert 60 / limit - 5 < refused.retry_s <= 60 / limit + 0.001, "in whole milliseconds"
    assert keys.admit(free).requests is None
    assert keys.admit(free).status is KeyStatus.OK


def test_a_place_comes_back_evenly(keys: KeyStore, store: JobStore) -> None:
    """As if time had passed: the mark of when the bucket is full is moved back."""
    key, secret = keys.create("a", Limits(requests_per_minute=2))
    mark = f"{store.db.prefix}owner:{key.id}:rate"
    assert [keys.admit(secret).status for _ in range(3)] == [
        KeyStatus.OK,
        KeyStatus.OK,
        KeyStatus.LIMITED,
    ]
    store.db.redis.set(mark, f"{float(store.db.redis.get(mark)) - 30_000:.3f}")
    assert [keys.admit(secret).status for _ in range(2)] == [KeyStatus.OK, KeyStatus.LIMITED]


def test_a_clock_set_back_locks_nobody_out(keys: KeyStore, store: JobStore) -> None:
    """The mark of when the bucket is full lies a day ahead, where the clock was."""
    key, secret = keys.create("a", Limits(requests_per_minute=2))
    keys.admit(secret)
    mark = f"{store.db.prefix}owner:{key.id}:rate"
    store.db.redis.set(mark, f"{float(store.db.redis.get(mark)) + DAY_S * 1000:.3f}")
    refused = keys.admit(secret)
    assert refused.status is KeyStatus.LIMITED
    assert refused.retry_s <= 30
    assert refused.requests is not None
    assert refused.requests.left == 0
    assert float(store.db.redis.get(mark)) / 1000 <= time.time() + 60, "it is forgotten"
    assert store.db.redis.pttl(mark) <= 60_000


def test_tokens_a_day(keys: KeyStore, store: JobStore) -> None:
    key, secret = keys.create("a", Limits(tokens_per_day=100))
    store.create(job(60, key.id))
    with pytest.raises(BudgetSpent, match="100 tokens a day") as caught:
        store.create(job(41, key.id))
    assert 0 < (caught.value.retry_after_s or 0) <= DAY_S
    first = store.create(job(40, key.id))
    tokens = keys.admit(secret).tokens
    assert tokens is not None
    assert (tokens.limit, tokens.left) == (100, 0)
    with pytest.raises(BudgetSpent):
        store.create(job(1, key.id))
    end(store, first.id, tokens=15)
    assert spent(keys, key) == 75, "what it took, its prompt included, in place of what was set aside"
    store.create(job(25, key.id))


def test_what_did_not_run_costs_nothing(keys: KeyStore, store: JobStore) -> None:
    key, _ = keys.create("a", Limits(tokens_per_day=100))
    made = store.create(job(100, key.id))
    assert (spent(keys, key), jobs(keys, key)) == (100, 1)
    store.cancel(made.id)
    assert (spent(keys, key), jobs(keys, key)) == (0, 0)
    store.cancel(made.id)
    assert (spent(keys, key), jobs(keys, key)) == (0, 0)


def test_jobs_at_the_same_time(keys: KeyStore, store: JobStore) -> None:
    key, _ = keys.create("a", Limits(max_jobs=2))
    other, _ = keys.create("b", Limits(max_jobs=2))
    first = store.create(job(1, key.id))
    store.create(job(1, key.id, priority=Priority.BULK))
    again = job(1, key.id)
    with pytest.raises(LimitReached, match="2 jobs of this API key are waiting or running"):
        store.create(again)
    store.create(job(1, other.id))
    claim = claimed(store, first.id)
    with pytest.raises(LimitReached):
        store.create(again)
    store.finish(first.id, claim.fencing_token, Status.FAILED, error={"code": "x", "message": "y"})
    assert store.create(again).id == again.id


def test_a_refused_job_can_be_sent_again_with_its_idempotency_key(keys: KeyStore, store: JobStore) -> None:
    key, _ = keys.create("a", Limits(max_jobs=1))
    first = store.create(job(1, key.id))
    new = job(1, key.id, idempotency_key="k", body_hash="h")
    with pytest.raises(LimitReached):
        store.create(new)
    store.cancel(first.id)
    assert store.create(new).id == new.id
    assert store.create(job(1, key.id, idempotency_key="k", body_hash="h")).id == new.id


@pytest.fixture
def narrow(redis_server: RedisServer) -> Iterator[JobStore]:
    """A store that takes two queued jobs."""
    store = JobStore(fast_settings(redis_server, max_queued=2))
    yield store
    store.close()


def test_queued_jobs_of_all(narrow: JobStore) -> None:
    first, _ = queued(narrow), queued(narrow)
    with pytest.raises(LimitReached, match="2 jobs are queued"):
        queued(narrow)
    claimed(narrow, first)
    queued(narrow)


def line(number: int, tokens: int) -> Line:
    return Line(number, f"id-{number}", "", f'{{"prompt":"p","max_tokens":{tokens},"seed":0}}', tokens)


def made(batches: BatchStore, key: ApiKey) -> Batch:
    return batches.create(NewBatch(endpoint=CHAT, input_file_id="file_x", owner=key.id))


def lead(batches: BatchStore) -> Work:
    work = batches.lead("me", {"": 64})
    assert work is not None
    return work


def test_a_batch_draws_on_the_budget_and_rests_when_it_is_spent(
    keys: KeyStore, batches: BatchStore, store: JobStore
) -> None:
    key, _ = keys.create("a", Limits(tokens_per_day=100, weight=3.0, max_jobs=1))
    batch = made(batches, key)
    assert lead(batches).weights == {key.id: 3.0}
    batches.chunks_ready("me", batch.id, 1, 3)
    active = next(a.batch for a in lead(batches).active if a.batch.id == batch.id)
    windows = WindowStore(store.db)
    assert windows.send("me", active, (0, 2), [NewWindow("", [line(n, 50).packed(n) for n in (1, 2)])])
    assert (spent(keys, key), jobs(keys, key)) == (100, 0), "lines have no seats"
    assert lead(batches).tokens_left == {key.id: 0}
    with pytest.raises(BudgetSpent):
        made(batches, key)
    [window_id] = batches.live(batch.id)
    claim = windows.claim(window_id, "w", "token")
    assert isinstance(claim, WindowClaim)
    took = LineEnd(0, Status.SUCCEEDED, "x", 50, input_tokens=5, output_tokens=15)
    for number, ends in enumerate(([], [took]), 1):
        windows.advance([Group(window_id, claim.fencing_token, number, 2, ends)])
    assert spent(keys, key) == 70
    assert lead(batches).tokens_left == {key.id: 30}
    made(batches, key)


def test_batches_at_the_same_time(keys: KeyStore, batches: BatchStore) -> None:
    key, _ = keys.create("a", Limits(max_batches=2))
    other, _ = keys.create("b", Limits(max_batches=2))
    first, second = made(batches, key), made(batches, key)
    lead(batches)
    again = NewBatch(endpoint=CHAT, input_file_id="file_x", owner=key.id, idempotency_key="k", body_hash="h")
    with pytest.raises(LimitReached, match="2 batches of this API key have not ended"):
        batches.create(again)
    made(batches, other)
    batches.finish("me", first.id, "completed")
    batches.finish("me", first.id, "completed")
    assert batches.create(again).id == again.id
    assert batches.create(again).id == again.id
    assert next(found.batches for found in keys.list() if found.id == key.id) == 2
    with pytest.raises(LimitReached):
        made(batches, key)
    batches.fail("me", second.id, "empty_file", "m")
    made(batches, key)
    free, _ = keys.create("c", Limits(max_batches=None))
    assert len({made(batches, free).id for _ in range(3)}) == 3


def test_owners_without_keys_have_no_budget(batches: BatchStore) -> None:
    batches.create(NewBatch(endpoint=CHAT, input_file_id="file_x", owner="anonymous"))
    work = lead(batches)
    assert (work.weights, work.tokens_left) == ({}, {})
