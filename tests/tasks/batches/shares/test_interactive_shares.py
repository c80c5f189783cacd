"""Interactive jobs of several keys, where there are more than the workers take."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

from tasks.base.settings import Settings
from tasks.batches.store import BatchStore
from tasks.broker.publisher import Publisher
from tasks.records.claim import QueueMessage
from tasks.records.job import Job, NewJob, Priority, Status
from tasks.store.jobs import JobStore
from tasks.store.queue_stats import queue_stats
from tests.support.workers import Workers, wait_until
from tests.tasks.helpers.records import batch_store, claimed

JOB_S = 0.5
MANY = 60  # of JOB_S on four slots: 7.5 s
LEADER = "me"


@pytest.fixture
def batches(store: JobStore) -> BatchStore:
    return batch_store(store)


def create(store: JobStore, owner: str, model: str | None = None) -> tuple[Job, bool]:
    return store.create(NewJob({"prompt": "p"}, owner=owner, model=model))


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
    assert [to_send for _, to_send in held] == [False, False, False]
    assert lead(batches, {"": 2}) == ({"": {"a": 2}}, {"": {"a": 2, "b": 1}})
    now = queue_stats(store.db)
    assert (now.deferred, now.waiting["interactive"], now.waiting["bulk"]) == (3, 5, 0)
    assert batches.release_deferred(LEADER, {"b": 5}, priority=Priority.INTERACTIVE) == [
        QueueMessage(held[1][0].id, Priority.INTERACTIVE, "p")
    ]
    store.cancel(held[2][0].id)
    assert lead(batches, {"": 9}) == ({"": {"a": 2, "b": 1}}, {"": {"a": 1}})
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
    assert released.model_queue == "one"


def test_the_leader_is_woken_only_where_a_job_is_held(batches: BatchStore, store: JobStore) -> None:
    lead(batches, {"": 1})
    pubsub = store.db.redis.pubsub(ignore_subscribe_messages=True)
    pubsub.subscribe(f"{store.db.prefix}wake")
    pubsub.get_message(timeout=1)
    store.cancel(create(store, "a")[0].id)
    assert pubsub.get_message(timeout=0.1) is None
    first, _ = create(store, "a")
    create(store, "b")
    assert pubsub.get_message(timeout=1) is not None
    store.cancel(first.id)
    assert pubsub.get_message(timeout=1) is not None
    pubsub.close()


def send(
    store: JobStore,
    publisher: Publisher,
    owner: str,
    prompt: str,
    priority: Priority = Priority.INTERACTIVE,
) -> Job:
    job, to_send = store.create(NewJob({"prompt": prompt}, owner=owner, priority=priority))
    if to_send:
        publisher.try_all([QueueMessage.of(job)])
    return job


def finished(store: JobStore, job: Job, limit_s: float = 30.0) -> float:
    """Seconds from its creation to its end."""
    wait_until(lambda: store.get(job.id).status is Status.SUCCEEDED, limit_s)
    ended = store.get(job.id).finished_at
    assert ended is not None
    return ended - job.created_at


@pytest.mark.stack
def test_a_key_with_many_jobs_holds_nobody_up(
    store: JobStore, publisher: Publisher, settings: Settings, workers: Workers
) -> None:
    """Another key's job waits for what is sent, not for the whole queue; all of both end, each run once."""
    workers.model(settings)
    workers.io(settings)
    wait_until(lambda: bool(store.db.redis.exists(f"{store.db.prefix}interactive_room")))
    time.sleep(0.6)  # a round of the leader, which sees the worker
    many = [send(store, publisher, "hostile", f"delay={JOB_S} x") for _ in range(MANY)]
    waits = [finished(store, send(store, publisher, "honest", f"delay={JOB_S} y")) for _ in range(3)]
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
    store: JobStore, publisher: Publisher, settings: Settings, workers: Workers
) -> None:
    workers.model(settings.model_copy(update={"slots": 8}))
    workers.io(settings)
    wait_until(lambda: bool(store.db.redis.exists(f"{store.db.prefix}interactive_room")))
    time.sleep(0.6)  # a round of the leader, which sees the worker
    many = [send(store, publisher, "hostile", "delay=0.1 x") for _ in range(5 * MANY)]
    bulk = [send(store, publisher, "honest", "delay=0.1 y", Priority.BULK) for _ in range(2 * MANY)]
    left = queue_stats(store.db).waiting["interactive"]
    wait_until(lambda: queue_stats(store.db).waiting["interactive"] < MANY, 60)
    ended = sum(store.get(job.id).status is Status.SUCCEEDED for job in bulk)
    assert ended > (left - MANY) / 8, "one slot of eight is theirs"
    for job in many:
        store.cancel(job.id)


@pytest.mark.stack
def test_held_jobs_outlive_the_io_worker_and_the_model_worker(
    store: JobStore, publisher: Publisher, settings: Settings, workers: Workers
) -> None:
    model, io = workers.model(settings), workers.io(settings)
    wait_until(lambda: bool(store.db.redis.exists(f"{store.db.prefix}interactive_room")))
    jobs = [send(store, publisher, f"o{n % 3}", "delay=0.3 x") for n in range(40)]
    assert queue_stats(store.db).deferred > 0
    io.kill()
    model.kill()
    wait_until(lambda: not store.db.redis.exists(f"{store.db.prefix}interactive_room"))
    jobs += [send(store, publisher, "late", "delay=0.3 x")]
    workers.io(settings)
    workers.model(settings)
    for job in jobs:
        finished(store, job, 60)
    assert queue_stats(store.db).deferred == 0
