"""A model worker and its broker: restarts, lost messages, and what Flower asks and is told."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tasks.base.queue_names import IO_QUEUE, QUEUES, queue_of
from tasks.base.settings import Settings
from tasks.broker.celery_app import make_app
from tasks.records.job import Priority, Status
from tasks.store.jobs import JobStore
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import Workers, wait_until
from tests.tasks.helpers.records import ended, queued, submit_many, unsent, waiting_for

pytestmark = pytest.mark.stack
SCRIPT = "tokens=7 steps=4 drafted=lookup:5:3 delay=0.1"


def test_redis_restart_in_the_middle_loses_nothing(own_redis: RedisServer, workers: Workers) -> None:
    settings = fast_settings(own_redis, lease_ms=20_000)  # none runs out in the outage
    store = JobStore(settings)
    workers.io(settings)
    worker = workers.model(settings)
    jobs = submit_many(store, 20, "delay=0.4")
    running = queued(store, "delay=2 long")
    waiting_for(store, running, Status.RUNNING)
    own_redis.stop()
    time.sleep(1.5)
    own_redis.start()
    for job_id in (*jobs, running):
        job = ended(store, job_id)
        assert (job.status, job.attempts) == (Status.SUCCEEDED, 1)
    assert worker.process.poll() is None
    assert ended(store, queued(store, "after")).status is Status.SUCCEEDED
    assert worker.terminate() == 0
    store.close()


def test_redis_frozen_and_thawed(own_redis: RedisServer, workers: Workers) -> None:
    settings = fast_settings(own_redis, redis_url=own_redis.within(1))
    store = JobStore(settings)
    workers.io(settings)
    workers.model(settings)
    jobs = submit_many(store, 10, "delay=0.5")
    wait_until(lambda: store.get(jobs[0]).status is not Status.QUEUED)
    own_redis.freeze()
    time.sleep(2.5)
    own_redis.thaw()
    for job_id in jobs:
        assert ended(store, job_id).status is Status.SUCCEEDED
    store.close()


@pytest.mark.usefixtures("worker")
def test_a_lost_message_is_sent_again_by_the_io_worker(
    store: JobStore, settings: Settings, workers: Workers
) -> None:
    lost = unsent(store)
    time.sleep(0.5)
    assert store.get(lost).status is Status.QUEUED
    workers.io(settings)
    assert ended(store, lost).status is Status.SUCCEEDED


@pytest.mark.usefixtures("worker")
def test_the_reconciler_needs_no_process_beside_the_io_worker(
    store: JobStore, settings: Settings, workers: Workers
) -> None:
    io = workers.io(settings)
    wait_until(lambda: store.db.redis.exists(f"{store.db.prefix}reconciled_at") == 1, report=io.text)
    for child in Path(f"/proc/{io.process.pid}/task/{io.process.pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
    app = make_app(settings)
    for tick in ("medusaq.reconcile", "medusaq.drop_files"):  # an io worker of an earlier release runs, too
        app.send_task(tick, queue=IO_QUEUE)
    app.close()
    assert ended(store, unsent(store)).status is Status.SUCCEEDED
    waiting = settings.key_prefix + IO_QUEUE
    wait_until(lambda: store.db.redis.llen(waiting) == 0)
    assert "ERROR" not in io.text()
    assert io.terminate() == 0


@pytest.mark.usefixtures("worker")
def test_a_worker_answers_what_flower_asks(settings: Settings) -> None:
    app = make_app(settings)
    inspect = app.control.inspect(timeout=20, limit=1)
    [stats] = inspect.stats().values()
    assert stats["pool"]["max-concurrency"] == settings.concurrency
    [queues] = app.control.inspect(timeout=20, limit=1).active_queues().values()
    taken = {queue_of(kind, model) for kind in QUEUES for model in ("", "scripted")}
    assert {queue["name"] for queue in queues} == taken
    app.close()


@pytest.mark.usefixtures("worker")
def test_events_tell_flower_the_size_and_the_result(settings: Settings, store: JobStore) -> None:
    app = make_app(settings)
    seen: dict[str, dict[str, object]] = {}

    def note(event: dict[str, object]) -> None:
        seen.setdefault(str(event["type"]), event)

    with app.connection() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": note})
        with receiver.consumer_context() as (own, _, _):

            def drain_until(wanted: set[str]) -> None:
                give_up = time.monotonic() + 10
                while not wanted <= set(seen) and time.monotonic() < give_up:
                    own.drain_events(timeout=5)

            drain_until({"worker-heartbeat"})  # now the subscription stands
            queued(store, f"What is this? {SCRIPT}")
            queued(store, "fail=decode_failed")
            drain_until({"task-succeeded", "task-failed"})
    assert {"task-sent", "task-received", "task-started", "task-succeeded", "task-failed"} <= set(seen)
    assert seen["task-sent"]["queue"] == queue_of(Priority.INTERACTIVE)
    assert (
        seen["task-sent"]["args"]
        == seen["task-received"]["args"]
        == repr(f"{len(f'What is this? {SCRIPT}')} chars")
    )
    assert re.fullmatch(
        r"'7 tokens, [\d.]+ tok/s, 4 steps, 1\.75 tokens/step, lookup 60% accepted, stop'",
        str(seen["task-succeeded"]["result"]),
    )
    assert seen["task-failed"]["exception"] == "decode_failed"
    app.close()
