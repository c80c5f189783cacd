"""The reconciler: what it takes up, and what it must leave alone."""

from __future__ import annotations

import time

import pytest

from tasks.base.errors import JobNotFound
from tasks.base.queue_names import list_key
from tasks.base.settings import Settings
from tasks.io import reconcile_once
from tasks.records.job import Priority, Status
from tasks.store.jobs import JobStore, Reconciled
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import wait_until
from tests.tasks.helpers.records import (
    claimed,
    lose_messages,
    new,
    put_message,
    queued,
    sent_ids,
    unsent,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def settings(redis_server: RedisServer) -> Settings:
    """A message counts as lost after 0.9 s."""
    return fast_settings(redis_server, lease_ms=600)


def counts(done: Reconciled) -> tuple[int, int, int, int, int]:
    return done.requeued, done.lost, done.expired, done.resent, done.dropped


NOTHING = (0, 0, 0, 0, 0)


def test_nothing_to_do(store: JobStore) -> None:
    claimed(store, queued(store))
    queued(store)
    lose_messages(store)
    assert counts(store.reconcile()) == NOTHING


def test_expired_lease_is_requeued_and_sent(redis_server: RedisServer) -> None:
    settings = fast_settings(redis_server, lease_ms=1000)
    store = JobStore(settings)
    job_id = queued(store, "a prompt", priority=Priority.BULK)
    claim = claimed(store, job_id)
    lose_messages(store)
    for _ in range(12):  # at no time longer than a lease and two ticks apart
        time.sleep(0.1)
        reconcile_once(store)
    job = store.get(job_id)
    assert (job.status, job.attempts, job.worker) == (Status.QUEUED, 1, None)
    assert sent_ids(store, Priority.BULK) == [job_id]
    assert not store.finish(job_id, claim.fencing_token, Status.SUCCEEDED)
    assert claimed(store, job_id, "two").attempts == 2
    store.close()


def test_expired_lease_at_the_cap_fails_as_worker_lost(redis_server: RedisServer) -> None:
    store = JobStore(fast_settings(redis_server, lease_ms=200, max_attempts=1))
    job_id = queued(store)
    claimed(store, job_id)
    time.sleep(0.25)
    assert counts(store.reconcile()) == (0, 1, 0, 0, 0)
    job = store.get(job_id)
    assert job.status is Status.FAILED
    assert job.error is not None
    assert job.error["code"] == "worker_lost"
    store.close()


def test_expired_lease_of_a_cancelled_job_ends_it(redis_server: RedisServer) -> None:
    store = JobStore(fast_settings(redis_server, lease_ms=200))
    job_id = queued(store)
    claimed(store, job_id)
    store.cancel(job_id)
    time.sleep(0.25)
    store.reconcile()
    assert store.get(job_id).status is Status.CANCELLED
    store.close()


def test_after_a_gap_lease_holders_get_time_to_renew(redis_server: RedisServer) -> None:
    """Redis was away for longer than a lease: its return must not take every job from its worker."""
    settings = fast_settings(redis_server, lease_ms=3000)
    store = JobStore(settings)
    kept, lost = queued(store), queued(store)
    claim = claimed(store, kept)
    claimed(store, lost)
    lose_messages(store)
    store.reconcile()
    time.sleep(4.6)  # over lease + 2 ticks: nobody renewed and nobody looked
    returned = time.monotonic()
    assert counts(store.reconcile()) == NOTHING
    while not store.reconcile().requeued and time.monotonic() - returned < 30:
        store.heartbeat([(kept, claim.fencing_token)])
        time.sleep(0.1)
    assert sent_ids(store) == [lost]
    assert time.monotonic() - returned > 2.5
    assert store.get(kept).status is Status.RUNNING
    store.close()


def test_an_io_worker_that_is_killed_again_and_again_spares_no_lease_for_ever(
    redis_server: RedisServer,
) -> None:
    """Each look comes after a gap: a lease that had run out by the one before is spared no longer."""
    store = JobStore(fast_settings(redis_server, lease_ms=200))
    job_id = queued(store)
    claimed(store, job_id)
    store.reconcile()
    looks = 0
    while not store.reconcile().requeued and looks < 10:
        looks += 1
        time.sleep(0.45)  # over lease + 2 ticks: a gap
    assert 1 <= looks <= 3
    assert store.get(job_id).status is Status.QUEUED
    store.close()


def test_lost_message_with_an_empty_list_is_sent_again_once(store: JobStore) -> None:
    job_id = unsent(store, "a prompt")
    assert counts(store.reconcile()) == NOTHING
    time.sleep(1.05)
    reconcile_once(store)
    assert sent_ids(store) == [job_id]
    reconcile_once(store)
    assert sent_ids(store) == [job_id]


def test_an_old_message_still_in_its_list_is_not_lost(store: JobStore) -> None:
    job_id = queued(store, "waits")
    time.sleep(1.05)
    reconcile_once(store)
    assert sent_ids(store) == [job_id]


def test_lost_message_is_found_in_a_busy_queue_by_what_was_claimed_after_it(
    store: JobStore, settings: Settings
) -> None:
    lost = unsent(store, "lost")
    put_message(store, settings)
    time.sleep(1.05)
    assert counts(store.reconcile()) == NOTHING
    later, waiting = queued(store), queued(store)
    claimed(store, later)
    assert store.reconcile().resent == 1
    assert store.db.redis.lpop(list_key(settings, Priority.INTERACTIVE)).count(lost) > 1
    assert store.get(waiting).status is Status.QUEUED


def test_messages_of_jobs_that_have_ended_wait_for_nobody(store: JobStore, settings: Settings) -> None:
    store.db.redis.zadd(f"{store.db.prefix}models", {"gone": 1})
    for _ in range(3):
        store.cancel(queued(store, model="gone"))
        store.cancel(queued(store))
    lists = [list_key(settings, Priority.INTERACTIVE, model) for model in ("gone", "")]
    assert [store.db.redis.llen(each) for each in lists] == [3, 3]
    live = queued(store, model="gone")
    store.reconcile()
    assert [store.db.redis.llen(each) for each in lists] == [4, 0], "one is live, and the rest are few"
    store.cancel(live)
    store.reconcile()
    assert [store.db.redis.llen(each) for each in lists] == [0, 0]


def test_more_messages_of_jobs_that_have_ended_than_of_live_ones_make_way(
    store: JobStore, settings: Settings
) -> None:
    first, second = queued(store), queued(store)
    key = list_key(settings, Priority.INTERACTIVE)
    [message] = store.db.redis.lrange(key, 0, 0)
    store.db.redis.rpush(key, *[message.replace(second, "job_ended")] * 1002)
    assert counts(store.reconcile()) == NOTHING
    store.db.redis.rpush(key, message.replace(second, "job_ended"))
    assert counts(store.reconcile()) == (0, 0, 0, 2, 0)
    assert sorted(sent_ids(store)) == sorted([first, second])


def test_queues_are_judged_apart(store: JobStore) -> None:
    bulk, interactive = unsent(store, priority=Priority.BULK), queued(store)
    time.sleep(1.05)
    assert store.reconcile().resent == 1
    assert (sent_ids(store, Priority.BULK), sent_ids(store)) == ([bulk], [interactive])


def test_passed_deadline_expires_a_queued_job_only(redis_server: RedisServer) -> None:
    store = JobStore(fast_settings(redis_server, lease_ms=60_000))
    soon = time.time() + 1
    waiting, running = queued(store, deadline=soon), queued(store, deadline=soon)
    claimed(store, running)
    time.sleep(1.05)
    assert counts(store.reconcile()) == (0, 0, 1, 0, 0)
    assert store.get(waiting).status is Status.EXPIRED
    assert store.get(running).status is Status.RUNNING
    store.close()


def test_deadline_that_passed_while_running_counts_after_a_requeue(redis_server: RedisServer) -> None:
    store = JobStore(fast_settings(redis_server, lease_ms=60_000))
    job_id = queued(store, deadline=time.time() + 1)
    claim = claimed(store, job_id)
    time.sleep(1.05)
    store.reconcile()
    assert store.requeue(job_id, claim.fencing_token)
    assert store.reconcile().expired == 1
    assert store.get(job_id).status is Status.EXPIRED
    store.close()


def test_ended_records_are_dropped_after_their_time(redis_server: RedisServer) -> None:
    store = JobStore(fast_settings(redis_server, result_ttl_s=1))
    ended, live = queued(store, metadata={"run": "a"}), queued(store, metadata={"run": "a"})
    store.cancel(ended)
    assert store.reconcile().dropped == 0
    time.sleep(1.05)
    assert store.reconcile().dropped == 1
    with pytest.raises(JobNotFound):
        store.get(ended)
    assert [job.id for job in store.page(10, metadata={"run": "a"}).jobs] == [live]
    store.close()


def test_more_than_one_pass_is_finished(store: JobStore) -> None:
    """What the first pass sends hides no lost message from the others."""
    ids = [store.create(new()).id for _ in range(450)]
    lose_messages(store)
    time.sleep(1.05)
    reconcile_once(store)
    assert sorted(sent_ids(store)) == sorted(ids)


def test_a_clock_set_back_delays_nothing(store: JobStore) -> None:
    """What lies an hour ahead was noted before."""
    running, waiting = queued(store), queued(store)
    claimed(store, running)
    lose_messages(store)
    hour_ms = 3600 * 1000
    ahead = round(time.time() * 1000) + hour_ms
    prefix = store.db.prefix
    store.db.redis.zadd(f"{prefix}leases", {running: ahead})
    store.db.redis.zadd(f"{prefix}pending:interactive", {waiting: ahead})
    store.db.redis.hset(f"{prefix}job:{waiting}", "enqueued_at", ahead)
    for key in ("claimed:interactive", "reconciled_at"):
        store.db.redis.set(f"{prefix}{key}", ahead)
    for key in ("grace_since", "leader"):
        store.db.redis.set(f"{prefix}{key}", 0, px=hour_ms)
    sent: list[str] = []

    def all_sent() -> bool:
        store.reconcile()
        sent.extend(sent_ids(store))
        lose_messages(store)
        return set(sent) == {running, waiting}

    wait_until(all_sent)
    assert sent.count(running) == 1
    assert int(store.db.redis.get(f"{prefix}claimed:interactive")) < ahead
    assert store.db.redis.pttl(f"{prefix}leader") <= 5000
