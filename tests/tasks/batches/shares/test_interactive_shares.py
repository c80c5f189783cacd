"""Interactive jobs of several keys, where there are more than the workers take."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

import pytest

from tasks.base.settings import Settings
from tasks.batches.store import BatchStore
from tasks.records.api_key import Limits
from tasks.records.job import Job, NewJob, Priority, Status
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tasks.store.queue_stats import queue_stats
from tests.support.workers import Workers, wait_until
from tests.tasks.helpers.records import batch_store, claimed, is_sent, sent_ids

JOB_S = 0.5
MANY = 60  # of JOB_S on four slots: 7.5 s
LEADER = "me"


@pytest.fixture
def batches(store: JobStore) -> BatchStore:
    return batch_store(store)


def create(store: JobStore, owner: str, model: str | None = None) -> tuple[Job, bool]:
    """The job, and whether it was sent."""
    job = store.create(NewJob({"prompt": "p"}, owner=owner, model=model))
    return job, is_sent(store, job)


def lead(batches: BatchStore, rooms: Mapping[str, int]) -> tuple[object, object]:
    """What is sent and what is held."""
    work = batches.lead(LEADER, {"": 64}, rooms)
    assert work is not None
    assert (work.in_flight, work.deferred) == ({}, {}), "bulk jobs have shares of their own"
    return work.interactive_in_flight, work.interactive_deferred


def test_jobs_beyond_the_room_are_held_and_released(batches: BatchStore, store: JobStore) -> None:
    assert create(store, "a")[1], "nobody leads: nobody would send it later"
    lead(batches, {"": 2})
    assert create(store, "a")[1]
    held = [create(store, owner) for owner in ("a", "b", "a")]
    assert [sent for _, sent in held] == [False, False, False]
    assert lead(batches, {"": 2}) == ({"": {"a": 2}}, {"": {"a": 2, "b": 1}})
    now = queue_stats(store.db)
    assert (now.deferred, now.waiting["interactive"], now.waiting["bulk"]) == (3, 5, 0)
    assert batches.release_deferred(LEADER, {"b": 5}, priority=Priority.INTERACTIVE) == [held[1][0].id]
    assert sent_ids(store)[-1] == held[1][0].id
    store.cancel(held[2][0].id)
    assert lead(batches, {"": 3}) == ({"": {"a": 2, "b": 1}}, {"": {"a": 1}})
    assert not create(store, "c")[1], "no job overtakes a held one"
    claimed(store, held[1][0].id)
    store.cancel(held[0][0].id)
    batches.resign(LEADER)
    assert create(store, "c")[1], "nobody leads any more"
    assert store.get(held[0][0].id).status is Status.CANCELLED


def test_models_have_rooms_of_their_own(batches: BatchStore, store: JobStore) -> None:
    for model in ("one", "two", "away"):
        store.db.redis.zadd(f"{store.db.prefix}models", {model: 1})
    lead(batches, {"": 2, "one": 1})
    asked = ("one", "one", "two", "two", "two", None)
    assert [create(store, "o", model)[1] for model in asked] == [True, False, True, True, False, True]
    assert queue_stats(store.db).models["one"]["interactive"].jobs == 2
    [released] = batches.release_deferred(LEADER, {"o": 9}, "one", Priority.INTERACTIVE)
    assert sent_ids(store, model="one")[-1] == released


def test_the_end_of_a_job_sends_the_next_of_the_key_with_the_fewest_for_its_weight(
    batches: BatchStore, store: JobStore
) -> None:
    heavy = KeyStore(store.db).create("heavy", Limits(weight=4.0))[0].id
    lead(batches, {"": 4})
    running = [create(store, owner)[0] for owner in ("a", "a", heavy, heavy)]
    held = [create(store, owner)[0] for owner in ("a", "b", heavy, heavy, heavy)]
    order = []
    for job in running:
        store.cancel(job.id)
        order.append(sent_ids(store)[-1])
    assert order == [held[n].id for n in (1, 0, 2, 3)], "of the heavy one's four are like one of another's"
    assert lead(batches, {"": 4}) == ({"": {"a": 1, "b": 1, heavy: 2}}, {"": {heavy: 1}})


def test_where_places_are_fewer_nothing_takes_them(batches: BatchStore, store: JobStore) -> None:
    lead(batches, {"": 2})
    running = [create(store, "a")[0] for _ in range(2)]
    held = [create(store, "a")[0] for _ in range(3)]
    lead(batches, {"": 1})
    store.cancel(running[0].id)
    assert not is_sent(store, held[0])
    store.cancel(running[1].id)
    assert [is_sent(store, job) for job in held] == [True, False, False]
    batches.resign(LEADER)
    store.cancel(held[0].id)
    assert is_sent(store, held[1]), "also while nobody leads"


def test_a_deferred_job_whose_record_is_gone_holds_nobody_up(batches: BatchStore, store: JobStore) -> None:
    lead(batches, {"": 2})
    running, _, lost, later = (create(store, owner)[0] for owner in ("a", "c", "b", "c"))
    store.db.redis.delete(f"{store.db.prefix}job:{lost.id}")
    store.cancel(running.id)
    assert sent_ids(store)[-1] == later.id, "though the turn was that of the other"


def test_of_more_keys_than_places_each_has_its_turn(batches: BatchStore, store: JobStore) -> None:
    lead(batches, {"": 1})
    owners = {create(store, owner)[0].id: owner for owner in ["a"] * 60 + ["b"] * 60 + ["c"] * 3}
    while "c" in owners.values():
        ending = sent_ids(store)[-1]
        store.cancel(ending)
        del owners[ending]
    left = Counter(owners.values())
    assert min(left["a"], left["b"]) > 20, "the other two did not go first"


def test_what_expires_with_the_job_whose_place_it_takes_is_in_flight_no_longer(
    batches: BatchStore, store: JobStore
) -> None:
    lead(batches, {"": 1})
    soon = time.time() + 0.1
    jobs = [store.create(NewJob({"prompt": "p"}, owner=owner, deadline=soon)) for owner in ("a", "b", "b")]
    assert [is_sent(store, job) for job in jobs] == [True, False, False]
    time.sleep(0.15)
    assert store.reconcile().expired == 3
    assert {store.get(job.id).status for job in jobs} == {Status.EXPIRED}
    assert lead(batches, {"": 1}) == ({}, {})


def test_the_leader_is_not_woken_by_interactive_jobs(batches: BatchStore, store: JobStore) -> None:
    lead(batches, {"": 1})
    pubsub = store.db.redis.pubsub(ignore_subscribe_messages=True)
    pubsub.subscribe(f"{store.db.prefix}wake")
    pubsub.get_message(timeout=1)
    first, held = create(store, "a")[0], create(store, "b")[0]
    store.cancel(first.id)
    assert is_sent(store, held)
    assert pubsub.get_message(timeout=0.1) is None
    bulk = store.create(NewJob({"prompt": "p"}, priority=Priority.BULK))
    store.cancel(bulk.id)
    assert pubsub.get_message(timeout=1) is not None
    pubsub.close()


def send(
    store: JobStore,
    owner: str,
    prompt: str,
    priority: Priority = Priority.INTERACTIVE,
) -> Job:
    return store.create(NewJob({"prompt": prompt}, owner=owner, priority=priority))


def finished(store: JobStore, job: Job, limit_s: float = 30.0) -> float:
    """Seconds from its creation to its end."""
    wait_until(lambda: store.get(job.id).status is Status.SUCCEEDED, limit_s)
    ended = store.get(job.id).finished_at
    assert ended is not None
    return ended - job.created_at


@pytest.mark.stack
def test_a_key_with_many_jobs_holds_nobody_up(store: JobStore, settings: Settings, workers: Workers) -> None:
    """Another key's job waits for what is sent, not for the whole queue; all of both end, each run once."""
    workers.model(settings)
    workers.io(settings)
    wait_until(lambda: bool(store.db.redis.exists(f"{store.db.prefix}interactive_room")))
    time.sleep(0.6)  # a round of the leader, which sees the worker
    many = [send(store, "hostile", f"delay={JOB_S} x") for _ in range(MANY)]
    waits = [finished(store, send(store, "honest", f"delay={JOB_S} y")) for _ in range(3)]
    still = queue_stats(store.db).waiting["interactive"]
    assert max(waits) < 4 * JOB_S, waits
    assert still > MANY / 3, "there was nothing to wait for"
    for job in many:
        finished(store, job)
    assert {store.get(job.id).attempts for job in many} == {1}
    for name in ("interactive_held", "interactive_outstanding"):
        assert not store.db.redis.exists(store.db.prefix + name)


@pytest.mark.stack
def test_bulk_jobs_of_another_key_run_beside_more_interactive_ones_than_the_workers_take(
    store: JobStore, settings: Settings, workers: Workers
) -> None:
    workers.model(settings.model_copy(update={"slots": 8}))
    workers.io(settings)
    wait_until(lambda: bool(store.db.redis.exists(f"{store.db.prefix}interactive_room")))
    time.sleep(0.6)  # a round of the leader, which sees the worker
    many = [send(store, "hostile", "delay=0.1 x") for _ in range(5 * MANY)]
    bulk = [send(store, "honest", "delay=0.1 y", Priority.BULK) for _ in range(2 * MANY)]
    left = queue_stats(store.db).waiting["interactive"]
    wait_until(lambda: queue_stats(store.db).waiting["interactive"] < MANY, 60)
    ended = sum(store.get(job.id).status is Status.SUCCEEDED for job in bulk)
    assert ended > (left - MANY) / 8, "one place of eight is theirs"
    for job in many:
        store.cancel(job.id)


@pytest.mark.stack
def test_held_jobs_outlive_the_io_worker_and_the_model_worker(
    store: JobStore, settings: Settings, workers: Workers
) -> None:
    model, io = workers.model(settings), workers.io(settings)
    wait_until(lambda: bool(store.db.redis.exists(f"{store.db.prefix}interactive_room")))
    jobs = [send(store, f"o{n % 3}", "delay=0.3 x") for n in range(40)]
    assert queue_stats(store.db).deferred > 0
    io.kill()
    model.kill()
    wait_until(lambda: not store.db.redis.exists(f"{store.db.prefix}interactive_room"))
    jobs += [send(store, "late", "delay=0.3 x")]
    workers.io(settings)
    workers.model(settings)
    for job in jobs:
        finished(store, job, 60)
    assert queue_stats(store.db).deferred == 0
