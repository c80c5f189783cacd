"""Every transition of a record, the refused ones included; a server that is away, frozen or restarted."""

from __future__ import annotations

import json
import time

import pytest

from tasks.base.errors import IdempotencyConflict, JobNotFinished, JobNotFound, StoreUnavailable
from tasks.base.settings import Settings
from tasks.records.claim import Claim
from tasks.records.job import TERMINAL, Job, Priority, Status
from tasks.store.jobs import Beat, ClaimRejection, JobStore
from tests.support.servers import RedisServer, fast_settings, free_port
from tests.tasks.helpers.records import WORKER, claimed, lose_messages, new, queued, sent_ids

RESULT = {"text": "done"}


def terminal(store: JobStore, status: Status) -> str:
    """A job that has ended this way."""
    if status is Status.CANCELLED:
        job_id = queued(store)
        store.cancel(job_id)
    elif status is Status.EXPIRED:
        job_id = queued(store, deadline=time.time() + 0.01)
        time.sleep(0.02)
        assert store.claim(job_id, WORKER, "t") is ClaimRejection.DONE
    else:
        job_id = queued(store)
        claim = claimed(store, job_id)
        assert store.finish(job_id, claim.fencing_token, status, result=RESULT)
    assert store.get(job_id).status is status
    return job_id


def test_create_stores_a_queued_record(store: JobStore) -> None:
    before = time.time()
    job = store.create(
        new("héllo\n wörld", priority=Priority.BULK, model="m", deadline=before + 60, metadata={"run": "1"})
    )
    assert job == store.get(job.id)
    assert sent_ids(store, Priority.BULK) == [job.id]
    assert (job.status, job.priority, job.model, job.attempts) == (Status.QUEUED, Priority.BULK, "m", 0)
    assert job.request["prompt"] == "héllo\n wörld"
    assert job.metadata == {"run": "1"}
    assert job.created_at == pytest.approx(before, abs=1)
    assert job.deadline == pytest.approx(before + 60, abs=0.001)
    assert (job.started_at, job.finished_at, job.worker, job.result, job.error) == (None,) * 5


def test_creating_again_with_the_same_id_changes_nothing(store: JobStore) -> None:
    same = new()
    assert store.create(same) == store.create(same)
    assert sent_ids(store) == [same.id]


def test_idempotency_key(store: JobStore) -> None:
    first = store.create(new(idempotency_key="k", body_hash="a"))
    assert store.create(new(idempotency_key="k", body_hash="a")).id == first.id
    with pytest.raises(IdempotencyConflict, match=first.id):
        store.create(new(idempotency_key="k", body_hash="b"))
    other = store.create(new(idempotency_key="other", body_hash="b"))
    assert sent_ids(store) == [first.id, other.id]
    assert 0 < store.db.redis.pttl(f"{store.db.prefix}idem:job:k") <= 24 * 3600 * 1000


def test_an_earlier_job_is_found_by_its_key(store: JobStore) -> None:
    assert store.earlier("k", "a") is None
    first = store.create(new(idempotency_key="k", body_hash="a"))
    assert store.earlier("k", "a") == first
    assert store.earlier(None, "a") is None
    with pytest.raises(IdempotencyConflict, match=first.id):
        store.earlier("k", "b")


def test_the_end_names_the_model_that_ran_it(store: JobStore) -> None:
    for asked, kept in ((None, "served"), ("asked", "asked")):
        job_id = queued(store, model=asked)
        assert store.finish(
            job_id, claimed(store, job_id).fencing_token, Status.SUCCEEDED, result=RESULT, model="served"
        )
        assert store.get(job_id).model == kept


def test_idempotency_key_of_a_deleted_job_is_free(store: JobStore) -> None:
    first = store.create(new(idempotency_key="k", body_hash="a"))
    store.cancel(first.id)
    store.delete(first.id)
    assert store.create(new(idempotency_key="k", body_hash="b")).id != first.id


def test_claim_makes_it_running(store: JobStore) -> None:
    job_id = queued(store, "a prompt", metadata={"a": "b"})
    claim = claimed(store, job_id)
    job = store.get(job_id)
    assert (claim.attempts, claim.request["prompt"]) == (1, "a prompt")
    assert claim.fencing_token / 1000 == pytest.approx(time.time(), abs=60)
    assert (job.status, job.worker, job.attempts) == (Status.RUNNING, WORKER, 1)
    assert job.started_at == claim.claimed_at


def test_claim_repeated_with_its_token_is_the_same_claim(store: JobStore) -> None:
    job_id = queued(store)
    first = claimed(store, job_id, "mine")
    again = claimed(store, job_id, "mine")
    assert (again.fencing_token, again.attempts) == (first.fencing_token, 1)


def test_claim_of_a_running_job_is_busy(store: JobStore) -> None:
    job_id = queued(store)
    claimed(store, job_id, "one")
    assert store.claim(job_id, WORKER, "two") is ClaimRejection.BUSY


def test_claim_of_an_unknown_job(store: JobStore) -> None:
    assert store.claim("job_none", WORKER, "t") is ClaimRejection.UNKNOWN


def test_claim_after_the_lease_ran_out_takes_over(redis_server: RedisServer) -> None:
    store = JobStore(fast_settings(redis_server, lease_ms=600))
    job_id = queued(store)
    stale = claimed(store, job_id, "one")
    time.sleep(0.65)
    fresh = claimed(store, job_id, "two")
    assert fresh.fencing_token > stale.fencing_token
    assert fresh.attempts == 2
    assert not store.finish(job_id, stale.fencing_token, Status.SUCCEEDED, result={"text": "stale"})
    assert store.heartbeat([(job_id, stale.fencing_token), (job_id, fresh.fencing_token)]) == [
        Beat.LOST,
        Beat.OK,
    ]
    assert store.finish(job_id, fresh.fencing_token, Status.SUCCEEDED, result={"text": "fresh"})
    job = store.get(job_id)
    assert job.result == {"text": "fresh"}
    assert job.attempts == 2
    store.close()


@pytest.mark.slow
def test_attempts_cap_ends_as_worker_lost(redis_server: RedisServer) -> None:
    store = JobStore(fast_settings(redis_server, lease_ms=600, max_attempts=2))
    job_id = queued(store)
    for token in ("one", "two"):
        claimed(store, job_id, token)
        time.sleep(0.65)
    assert store.claim(job_id, WORKER, "three") is ClaimRejection.DONE
    job = store.get(job_id)
    assert (job.status, job.attempts) == (Status.FAILED, 2)
    assert job.error is not None
    assert (job.error["code"], job.error["param"]) == ("worker_lost", None)
    store.close()


@pytest.mark.slow
def test_the_last_attempt_counts_once_it_has_the_engine_to_itself(redis_server: RedisServer) -> None:
    store = JobStore(fast_settings(redis_server, lease_ms=600, max_attempts=2))
    job_id = queued(store)

    def claim(token: str) -> Claim:
        claim = store.claim(job_id, WORKER, token, isolates=True)
        assert isinstance(claim, Claim)
        return claim

    first = claim("one")
    assert (first.attempts, first.isolated) == (1, False), "the first of two"
    time.sleep(0.65)
    waiting = claim("two")
    assert claim("two").fencing_token == waiting.fencing_token
    assert (waiting.attempts, waiting.isolated, store.get(job_id).attempts) == (2, True, 1)
    assert store.requeue(job_id, waiting.fencing_token)
    assert store.get(job_id).attempts == 1, "nothing was counted, so nothing is taken back"
    lost = claim("three")
    time.sleep(0.65)
    last = claim("four")
    assert not store.start_isolated(job_id, lost.fencing_token)
    for _ in range(2):
        assert store.start_isolated(job_id, last.fencing_token)
        assert store.get(job_id).attempts == 2
    time.sleep(0.65)
    assert store.claim(job_id, WORKER, "five", isolates=True) is ClaimRejection.DONE
    store.close()


@pytest.mark.slow
def test_heartbeat_renews_the_lease(redis_server: RedisServer) -> None:
    store = JobStore(fast_settings(redis_server, lease_ms=900))
    job_id = queued(store)
    claim = claimed(store, job_id, "one")
    for _ in range(4):
        time.sleep(0.45)
        assert store.heartbeat([(job_id, claim.fencing_token)]) == [Beat.OK]
    assert store.claim(job_id, WORKER, "two") is ClaimRejection.BUSY
    store.close()


def test_heartbeat_answers_in_order(store: JobStore) -> None:
    ids = [queued(store) for _ in range(3)]
    fences = [claimed(store, job_id).fencing_token for job_id in ids]
    store.cancel(ids[1])
    store.finish(ids[2], fences[2], Status.SUCCEEDED, result=RESULT)
    pairs = [*zip(ids, fences, strict=True), ("job_none", 1)]
    assert store.heartbeat(pairs) == [Beat.OK, Beat.CANCEL, Beat.LOST, Beat.LOST]
    assert store.heartbeat([]) == []


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_finish_writes_the_end_and_tells_the_gateways_that_wait(store: JobStore, status: Status) -> None:
    job_id, other = queued(store, waiter="one"), queued(store)
    claim = claimed(store, job_id)
    for gateway in ("one", "two", "two"):
        watched = store.watch(store.get(job_id), gateway)
    assert watched.waiters == "one two"
    with store.db.redis.pubsub(ignore_subscribe_messages=True) as events:
        events.psubscribe(f"{store.db.prefix}events*")
        events.get_message(timeout=2)
        store.cancel(other)
        assert store.finish(job_id, claim.fencing_token, status, result=RESULT, error={"code": "c"})
        heard = [events.get_message(timeout=2) for _ in range(2)]
        assert events.get_message(timeout=0.1) is None, "nobody waits for the other"
    job = store.get(job_id)
    assert {message["channel"].removeprefix(store.db.prefix) for message in heard} == {
        "events:one",
        "events:two",
    }
    for message in heard:
        told_id, told_status, record = message["data"].split(" ", 2)
        assert (told_id, told_status) == (job_id, status)
        assert Job.from_hash(json.loads(record), job.request) == job
    assert store.watch(job, "late").status is status
    assert (job.status, job.result, job.error) == (status, RESULT, {"code": "c"})
    assert job.finished_at is not None


@pytest.mark.parametrize(("text", "streaming"), [("long " * 1000, False), ("short", True)])
def test_long_records_and_those_of_streams_are_not_told(store: JobStore, text: str, streaming: bool) -> None:
    job_id = queued(store, waiter="one", streaming=streaming)
    claim = claimed(store, job_id)
    with store.db.redis.pubsub(ignore_subscribe_messages=True) as events:
        events.subscribe(f"{store.db.prefix}events:one")
        events.get_message(timeout=2)
        result = {**RESULT, "text": text}
        assert store.finish(job_id, claim.fencing_token, Status.SUCCEEDED, result=result)
        assert events.get_message(timeout=2)["data"] == f"{job_id} succeeded"


def test_a_job_remembers_the_gateways_that_asked_last(store: JobStore) -> None:
    job = store.create(new())
    for n in range(100):
        job = store.watch(job, f"{n:032}")
    waiters = job.waiters.split()
    assert waiters == [f"{n:032}" for n in range(100 - len(waiters), 100)]
    assert 10 < len(waiters) < 20


def test_finish_repeated_by_its_writer_is_true_and_changes_nothing(store: JobStore) -> None:
    job_id = queued(store)
    claim = claimed(store, job_id)
    assert store.finish(job_id, claim.fencing_token, Status.SUCCEEDED, result=RESULT)
    before = store.get(job_id)
    assert store.finish(job_id, claim.fencing_token, Status.FAILED, error={"code": "late"})
    assert store.get(job_id) == before


def test_finish_of_a_job_that_is_not_running_is_refused(store: JobStore) -> None:
    job_id = queued(store)
    assert not store.finish(job_id, 0, Status.SUCCEEDED)
    assert not store.finish("job_none", 1, Status.SUCCEEDED)
    assert store.get(job_id).status is Status.QUEUED


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_a_terminal_record_never_changes(store: JobStore, status: Status) -> None:
    job_id = terminal(store, status)
    before = store.get(job_id)
    for fencing_token in (0, 1, 2):
        store.finish(job_id, fencing_token, Status.FAILED, error={"code": "x"})
        assert not store.requeue(job_id, fencing_token)
        assert store.heartbeat([(job_id, fencing_token)]) == [Beat.LOST]
    assert store.claim(job_id, WORKER, "other") is ClaimRejection.DONE
    assert store.claim(job_id, WORKER, "token") is ClaimRejection.DONE
    assert store.cancel(job_id) == before
    store.reconcile()
    assert store.get(job_id) == before


def test_requeue_does_not_count_the_attempt(store: JobStore) -> None:
    job_id = queued(store)
    claim = claimed(store, job_id)
    assert not store.requeue(job_id, claim.fencing_token + 1)
    assert store.requeue(job_id, claim.fencing_token)
    job = store.get(job_id)
    assert (job.status, job.attempts, job.worker) == (Status.QUEUED, 0, None)
    assert not store.requeue(job_id, claim.fencing_token)
    assert not store.finish(job_id, claim.fencing_token, Status.SUCCEEDED)
    assert claimed(store, job_id, "two").fencing_token > claim.fencing_token


def test_requeue_of_a_cancelled_job_ends_it(store: JobStore) -> None:
    job_id = queued(store)
    claim = claimed(store, job_id)
    store.cancel(job_id)
    assert not store.requeue(job_id, claim.fencing_token)
    assert store.get(job_id).status is Status.CANCELLED


def test_cancel_queued_and_running(store: JobStore) -> None:
    waiting, running = queued(store), queued(store)
    claim = claimed(store, running)
    assert store.cancel(waiting).status is Status.CANCELLED
    assert store.cancel(running).status is Status.RUNNING
    assert store.heartbeat([(running, claim.fencing_token)]) == [Beat.CANCEL]
    assert store.finish(running, claim.fencing_token, Status.CANCELLED, result=RESULT)
    assert store.get(running).result == RESULT
    with pytest.raises(JobNotFound):
        store.cancel("job_none")


def test_claim_of_a_lost_job_that_was_cancelled_ends_it(redis_server: RedisServer) -> None:
    store = JobStore(fast_settings(redis_server, lease_ms=600))
    job_id = queued(store)
    claimed(store, job_id, "one")
    store.cancel(job_id)
    time.sleep(0.65)
    assert store.claim(job_id, WORKER, "two") is ClaimRejection.DONE
    assert store.get(job_id).status is Status.CANCELLED
    store.close()


def test_delete(store: JobStore) -> None:
    job_id = queued(store, metadata={"run": "x"})
    with pytest.raises(JobNotFinished):
        store.delete(job_id)
    claim = claimed(store, job_id)
    with pytest.raises(JobNotFinished):
        store.delete(job_id)
    store.finish(job_id, claim.fencing_token, Status.SUCCEEDED, result=RESULT)
    store.delete(job_id)
    with pytest.raises(JobNotFound):
        store.get(job_id)
    with pytest.raises(JobNotFound):
        store.delete(job_id)
    lose_messages(store)
    left = sorted(store.db.redis.keys(f"{store.db.prefix}*"))
    assert left == [f"{store.db.prefix}{name}" for name in ("claimed:interactive", "ended", "seq")]


def test_no_server_is_store_unavailable(settings: Settings) -> None:
    nowhere = settings.model_copy(update={"redis_url": f"redis://127.0.0.1:{free_port()}/0"})
    store = JobStore(nowhere)
    for call in (lambda: store.get("x"), lambda: store.create(new()), store.reconcile):
        with pytest.raises(StoreUnavailable):
            call()


@pytest.mark.slow
def test_frozen_server_is_store_unavailable_in_time(own_redis: RedisServer) -> None:
    store = JobStore(fast_settings(own_redis, redis_url=own_redis.within(1)))
    job_id = queued(store)
    own_redis.freeze()
    started = time.monotonic()
    with pytest.raises(StoreUnavailable):
        store.get(job_id)
    assert time.monotonic() - started < 8
    own_redis.thaw()
    assert store.get(job_id).id == job_id
    store.close()


def test_restarted_server_forgets_neither_records_nor_the_store_its_scripts(own_redis: RedisServer) -> None:
    store = JobStore(fast_settings(own_redis))
    job_id = queued(store)
    claim = claimed(store, job_id)
    # While the disk is busy, the server writes its log up to two seconds later.
    assert store.db.redis.execute_command("WAITAOF", 1, 0, 20_000) == [1, 0]
    own_redis.kill()
    own_redis.start()
    assert store.finish(job_id, claim.fencing_token, Status.SUCCEEDED, result=RESULT)
    assert store.get(job_id).status is Status.SUCCEEDED
    store.close()


def test_full_server_is_store_unavailable(own_redis: RedisServer) -> None:
    store = JobStore(fast_settings(own_redis))
    job_id = queued(store)
    store.db.redis.config_set("maxmemory", "1mb")
    with pytest.raises(StoreUnavailable, match="maxmemory"):
        store.create(new("x" * 2_000_000))
    assert store.get(job_id).status is Status.QUEUED
    store.close()
