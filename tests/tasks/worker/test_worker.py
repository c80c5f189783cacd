"""The life of a model worker, with a real Celery process, a real server and the scripted engine."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

import engine
from tasks.base.queue_names import IO_QUEUE, queue_of
from tasks.base.settings import Settings
from tasks.broker.celery_app import make_app
from tasks.broker.publisher import Publisher
from tasks.records.claim import QueueMessage
from tasks.records.job import Acceptance, Decoding, NewJob, Priority, Status
from tasks.store.jobs import JobStore
from tasks.store.workers import Registry
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import Worker, Workers, wait_until
from tests.tasks.helpers.records import claimed, ended, new, queued, submitted, waiting_for

pytestmark = pytest.mark.stack
SCRIPT = "tokens=7 steps=4 drafted=lookup:5:3 delay=0.1"


class Log:
    """The scripted engine's log of what it began and ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.env = {"SCRIPTED_LOG": str(path)}

    def lines(self, kind: str) -> list[str]:
        """The request ids of the "start" or "end" lines, in order."""
        if not self.path.exists():
            return []
        words = [line.split() for line in self.path.read_text().splitlines()]
        return [word[1] for word in words if word[0] == kind]


@pytest.fixture
def engine_log(tmp_path: Path) -> Log:
    return Log(tmp_path / "engine.log")


@pytest.fixture
def worker(settings: Settings, workers: Workers) -> Worker:
    return workers.model(settings)


def submit_many(store: JobStore, publisher: Publisher, count: int, prompt: str) -> list[str]:
    return [submitted(store, publisher, f"{prompt} n{n}", priority=Priority.BULK) for n in range(count)]


def test_the_names_of_a_request_are_the_engines() -> None:
    assert list(Decoding) == list(engine.Decoding)
    assert list(Acceptance) == list(engine.Acceptance)


def test_outcomes(settings: Settings, store: JobStore, publisher: Publisher, worker: Worker) -> None:
    """Success, failure, a foreign model, cancels and deadlines, by one worker, which survives them all."""
    good = ended(store, submitted(store, publisher, "hello there delay=0.2 tokens=10"))
    assert good.status is Status.SUCCEEDED
    assert good.error is None
    assert good.result is not None
    assert good.result["text"] == "hello there"
    assert good.model == "scripted", "though none was asked for"
    assert good.result["finish_reason"] == "stop"
    assert good.result["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 10,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    timing = good.result["timing"]
    assert 0 <= timing["queue_s"] < timing["total_s"]
    working = timing["total_s"] - timing["queue_s"]
    assert 0.2 <= working < 20
    assert timing["tokens_per_s"] == pytest.approx(10 / working)
    assert good.worker is not None
    assert good.worker.endswith(f":{worker.process.pid}")
    assert good.result["speculation"] == {"steps": 10, "tokens_per_step": 1.0, "sources": {}}
    shown = f"10 tokens, {timing['tokens_per_s']:.1f} tok/s, 10 steps, 1.00 tokens/step, stop"
    wait_until(lambda: shown in worker.text(), report=worker.text)

    bad = ended(store, submitted(store, publisher, "fail=decode_failed delay=0.05"))
    assert bad.status is Status.FAILED
    assert bad.error == {"code": "decode_failed", "message": "as the script says", "param": None}

    foreign = ended(store, submitted(store, publisher, "hi", model="another"))
    assert foreign.error is not None
    assert (foreign.error["code"], foreign.error["param"]) == ("model_not_found", "model")
    assert ended(store, submitted(store, publisher, "hi", model="scripted")).status is Status.SUCCEEDED

    for param, value, code in (
        ("temperature", -1, "invalid_request"),
        ("decoding", "psychic", "invalid_request"),
        ("acceptance", "any", "invalid_request"),
        ("decoding", "medusa", "no_heads"),
    ):
        refused, _ = store.create(NewJob(request={"prompt": "hi", param: value}))
        publisher.publish_all([QueueMessage.of(refused)])
        error = ended(store, refused.id).error
        assert error is not None
        assert (error["param"], error["code"]) == (param, code)

    asked = {"prompt": 'cut=1 tokens=3 {"a":', "response_format": {"type": "json_object"}}
    torn, _ = store.create(NewJob(request=asked))
    publisher.publish_all([QueueMessage.of(torn)])
    incomplete = ended(store, torn.id)
    assert (incomplete.status, (incomplete.error or {})["code"]) == (Status.FAILED, "incomplete")
    assert incomplete.result is not None, "the text so far is not lost"
    assert (incomplete.result["text"], incomplete.result["finish_reason"]) == ('{"a":', "length")
    assert incomplete.result["usage"]["completion_tokens"] == 3
    wait_until(lambda: "incomplete: the answer was cut off after 3 tokens" in worker.text())

    running = submitted(store, publisher, "partial text delay=30 tokens=1000")
    waiting_for(store, running, Status.RUNNING)
    time.sleep(0.3)
    assert store.cancel(running).status is Status.RUNNING
    cancelled = ended(store, running, 20)
    assert cancelled.status is Status.CANCELLED
    assert cancelled.result is not None
    assert 0 < cancelled.result["usage"]["completion_tokens"] < 1000

    late = submitted(store, publisher, "partial text delay=30 tokens=1000", deadline=time.time() + 2)
    expired = ended(store, late, 20)
    assert expired.status is Status.EXPIRED
    assert expired.result is not None
    assert expired.result["finish_reason"] == "expired"

    early = queued(store, deadline=time.time() + 0.05)
    time.sleep(0.1)
    publisher.publish_all([QueueMessage.of(store.get(early))])
    assert ended(store, early).result is None

    stored = {name: value for name, value in good.result.items() if name != "speculation"}
    old = queued(store)
    assert store.finish(old, claimed(store, old).fencing_token, Status.SUCCEEDED, result=stored)
    publisher.publish_all([QueueMessage.of(store.get(old))])
    shown_again = f"'10 tokens, {timing['tokens_per_s']:.1f} tok/s, stop'"
    wait_until(lambda: shown_again in worker.text(), report=worker.text)

    [info] = Registry(store.db, settings.worker_ttl_s).live()
    assert (info.model, info.slots, info.context_length) == ("scripted", settings.slots, 2048)
    assert info.metrics["generated_tokens_total"] > 10
    assert not info.has_heads
    assert "Traceback" not in worker.text()


def test_a_job_that_waits_to_be_alone_obeys_cancels_and_deadlines(
    settings: Settings, store: JobStore, publisher: Publisher, worker: Worker
) -> None:
    beside = submitted(store, publisher, "partial text delay=30 tokens=1000")
    waiting_for(store, beside, Status.RUNNING)
    for status in (Status.CANCELLED, Status.EXPIRED):
        deadline = time.time() + 2 if status is Status.EXPIRED else None
        last, _ = store.create(new("hello", deadline=deadline))
        store.db.redis.hset(f"{store.db.prefix}job:{last.id}", "attempts", settings.max_attempts - 1)
        publisher.publish_all([QueueMessage.of(last)])
        waiting_for(store, last.id, Status.RUNNING)
        if status is Status.CANCELLED:
            store.cancel(last.id)
        job = ended(store, last.id)
        assert (job.status, job.result) == (status, None)
        wait_until(lambda: f"{status} before it ran" in worker.text(), report=worker.text)  # noqa: B023
    assert store.get(beside).status is Status.RUNNING
    assert ended(store, submitted(store, publisher, "hello")).status is Status.SUCCEEDED
    store.cancel(beside)


def test_an_error_of_our_own_is_not_taken_for_a_lost_worker(
    store: JobStore, publisher: Publisher, worker: Worker
) -> None:
    """Of a record that no gateway of this version lets in."""
    job, _ = store.create(NewJob(request={"prompt": "hi", "logit_bias": {"word": 1}}))
    publisher.publish_all([QueueMessage.of(job)])
    failed = ended(store, job.id, 5)
    assert (failed.status, failed.attempts) == (Status.FAILED, 1)
    assert failed.error is not None
    assert failed.error["code"] == "internal_error"
    assert "word" not in failed.error["message"]
    wait_until(lambda: "ValueError" in worker.text())


@pytest.mark.usefixtures("worker")
def test_the_lease_of_a_long_job_is_renewed(
    store: JobStore, publisher: Publisher, settings: Settings, workers: Workers
) -> None:
    workers.io(settings)
    job_id = submitted(store, publisher, "delay=7")
    job = ended(store, job_id)
    assert (job.status, job.attempts) == (Status.SUCCEEDED, 1)


def test_repeated_messages_do_nothing(store: JobStore, publisher: Publisher, worker: Worker) -> None:
    job_id = submitted(store, publisher, "delay=3")
    waiting_for(store, job_id, Status.RUNNING)
    publisher.publish_all([QueueMessage.of(store.get(job_id))])
    before = ended(store, job_id)
    publisher.publish_all([QueueMessage.of(before)])
    publisher.publish("job_none", Priority.BULK, "x")
    assert ended(store, submitted(store, publisher, "last")).status is Status.SUCCEEDED
    assert store.get(job_id) == before
    assert before.attempts == 1
    assert "Traceback" not in worker.text()


def test_a_job_taken_by_another_worker_is_dropped(
    store: JobStore, publisher: Publisher, worker: Worker
) -> None:
    """The lease is lost while this worker still computes: its result must not be written."""
    job_id = submitted(store, publisher, "mine delay=5")
    waiting_for(store, job_id, Status.RUNNING)
    fencing_token = int(store.db.redis.hget(f"{store.db.prefix}job:{job_id}", "fence"))
    assert store.requeue(job_id, fencing_token)
    claim = claimed(store, job_id, "theirs")
    wait_until(lambda: "not ours any more" in worker.text())
    assert store.finish(job_id, claim.fencing_token, Status.SUCCEEDED, result={"text": "theirs"})
    assert store.get(job_id).result == {"text": "theirs"}


def test_interactive_overtakes_bulk(redis_server: RedisServer, workers: Workers, engine_log: Log) -> None:
    settings = fast_settings(redis_server, slots=1)
    store, publisher = JobStore(settings), Publisher.connect(settings)
    bulk = submit_many(store, publisher, 8, "delay=0.05")
    fast = [submitted(store, publisher, f"delay=0.05 n{n}") for n in range(3)]
    workers.model(settings, env=engine_log.env)
    for job_id in (*bulk, *fast):
        ended(store, job_id)
    order = [request.partition(".")[0] for request in engine_log.lines("start")]
    assert order == [*fast, *bulk]
    publisher.close()
    store.close()


def test_sigterm_lets_running_jobs_finish_and_loses_no_message(
    store: JobStore, publisher: Publisher, worker: Worker, workers: Workers, settings: Settings
) -> None:
    jobs = submit_many(store, publisher, 30, "delay=0.7")
    wait_until(lambda: store.get(jobs[settings.slots - 1]).status is not Status.QUEUED)
    assert worker.terminate() == 0
    statuses = [store.get(job_id).status for job_id in jobs]
    assert statuses.count(Status.SUCCEEDED) >= settings.slots
    assert Status.RUNNING not in statuses
    assert set(statuses) == {Status.SUCCEEDED, Status.QUEUED}
    assert Registry(store.db, settings.worker_ttl_s).live() == []
    workers.model(settings)
    for job_id in jobs:
        job = ended(store, job_id, 15)
        assert (job.status, job.attempts) == (Status.SUCCEEDED, 1)


def test_sigterm_hands_back_what_does_not_finish_in_time(
    store: JobStore, publisher: Publisher, worker: Worker, workers: Workers, settings: Settings
) -> None:
    long = [submitted(store, publisher, f"delay=10 n{n}") for n in range(2)]
    for job_id in long:
        waiting_for(store, job_id, Status.RUNNING)
    started = time.monotonic()
    assert worker.terminate() == 0
    assert time.monotonic() - started < settings.drain_s + 20
    for job_id in long:
        job = store.get(job_id)
        assert (job.status, job.attempts, job.worker) == (Status.QUEUED, 0, None)
    workers.model(settings)
    for job_id in long:
        assert (ended(store, job_id).status, store.get(job_id).attempts) == (Status.SUCCEEDED, 1)


def test_kill_9_and_another_worker_ends_each_job_exactly_once(
    store: JobStore, publisher: Publisher, settings: Settings, workers: Workers, engine_log: Log
) -> None:
    ends: list[str] = []
    workers.io(settings)
    first = workers.model(settings, env=engine_log.env)
    with store.db.redis.pubsub() as events:
        events.subscribe(f"{store.db.prefix}events")
        jobs = submit_many(store, publisher, 24, "delay=0.3")
        wait_until(lambda: len(engine_log.lines("end")) >= 6)
        first.kill()
        workers.model(settings, env=engine_log.env)
        for job_id in jobs:
            job = ended(store, job_id, 20)
            assert job.status is Status.SUCCEEDED
            assert job.attempts <= 2
        while message := events.get_message(timeout=0.3):
            if message["type"] == "message":
                ends.append(message["data"].split()[0])
    assert sorted(ends) == sorted(jobs)
    assert any(store.get(job_id).attempts == 2 for job_id in jobs)


def test_a_prompt_that_kills_workers_ends_as_worker_lost(redis_server: RedisServer, workers: Workers) -> None:
    settings = fast_settings(redis_server, max_attempts=2, lease_ms=600)
    store, publisher = JobStore(settings), Publisher.connect(settings)
    workers.io(settings)
    poison = submitted(store, publisher, "die=1")
    for _ in range(2):
        worker = workers.model(settings, ready=False)
        assert worker.process.wait(20) == -signal.SIGKILL
    job = ended(store, poison)
    assert job.error is not None
    assert (job.status, job.error["code"], job.attempts) == (Status.FAILED, "worker_lost", 2)
    publisher.close()
    store.close()


def test_jobs_beside_a_prompt_that_kills_workers_are_unharmed(
    redis_server: RedisServer, workers: Workers
) -> None:
    """They are lost as often as it is, but for the last time, when each has a worker to itself."""
    settings = fast_settings(redis_server, max_attempts=2, lease_ms=2000)
    store, publisher = JobStore(settings), Publisher.connect(settings)
    workers.io(settings)
    poison = queued(store, "die=1")
    beside = [submitted(store, publisher, f"delay=2 n{n}") for n in range(3)]
    first = workers.model(settings, ready=False)
    for job_id in beside:
        waiting_for(store, job_id, Status.RUNNING, 20)
    publisher.publish_all([QueueMessage.of(store.get(poison))])
    assert first.process.wait(20) == -signal.SIGKILL

    def over() -> bool:
        return all(store.get(job_id).terminal for job_id in (poison, *beside))

    while not over():
        worker = workers.model(settings, ready=False)
        wait_until(lambda worker=worker: over() or worker.process.poll() is not None, 30, report=worker.text)
    for job_id in beside:
        job = ended(store, job_id, 20)
        assert (job.status, job.attempts) == (Status.SUCCEEDED, 2)
    error = store.get(poison).error
    assert error is not None
    assert error["code"] == "worker_lost"
    publisher.close()
    store.close()


def test_an_engine_that_closes_stops_its_worker_and_the_job_goes_on_elsewhere(
    redis_server: RedisServer, workers: Workers
) -> None:
    settings = fast_settings(redis_server, max_attempts=1, lease_ms=600)
    store, publisher = JobStore(settings), Publisher.connect(settings)
    workers.io(settings)
    worker = workers.model(settings)
    job_id = submitted(store, publisher, "close=1 delay=5")
    assert worker.process.wait(15) == 1
    error = ended(store, job_id).error
    assert error is not None
    assert error["code"] == "worker_lost"
    publisher.close()
    store.close()


def test_a_model_that_cannot_load_ends_with_one_line_and_code_3(settings: Settings, workers: Workers) -> None:
    worker = workers.model(settings, ready=False, env={"SCRIPTED_LOAD_ERROR": "/no.gguf: not a GGUF file"})
    assert worker.process.wait(20) == 3
    assert worker.text().splitlines()[-1] == "error: the model cannot be loaded: /no.gguf: not a GGUF file"
    assert "Traceback" not in worker.text()


def test_redis_restart_in_the_middle_loses_nothing(own_redis: RedisServer, workers: Workers) -> None:
    settings = fast_settings(own_redis)
    store, publisher = JobStore(settings), Publisher.connect(settings)
    workers.io(settings)
    worker = workers.model(settings)
    jobs = submit_many(store, publisher, 20, "delay=0.4")
    running = submitted(store, publisher, "delay=2 long")
    waiting_for(store, running, Status.RUNNING)
    own_redis.stop()
    time.sleep(1.5)
    own_redis.start()
    for job_id in (*jobs, running):
        job = ended(store, job_id, 30)
        assert (job.status, job.attempts) == (Status.SUCCEEDED, 1)
    assert worker.process.poll() is None
    assert ended(store, submitted(store, publisher, "after")).status is Status.SUCCEEDED
    assert worker.terminate() == 0
    publisher.close()
    store.close()


def test_redis_frozen_and_thawed(own_redis: RedisServer, workers: Workers) -> None:
    settings = fast_settings(own_redis, redis_url=own_redis.within(1))
    store, publisher = JobStore(settings), Publisher.connect(settings)
    workers.io(settings)
    workers.model(settings)
    jobs = submit_many(store, publisher, 10, "delay=0.5")
    wait_until(lambda: store.get(jobs[0]).status is not Status.QUEUED)
    own_redis.freeze()
    time.sleep(2.5)
    own_redis.thaw()
    for job_id in jobs:
        assert ended(store, job_id, 30).status is Status.SUCCEEDED
    publisher.close()
    store.close()


@pytest.mark.usefixtures("worker")
def test_a_lost_message_is_sent_again_by_the_io_worker(
    store: JobStore, settings: Settings, workers: Workers
) -> None:
    workers.io(settings)
    assert ended(store, queued(store)).status is Status.SUCCEEDED


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
    assert ended(store, queued(store)).status is Status.SUCCEEDED
    waiting = settings.key_prefix + IO_QUEUE
    wait_until(
        lambda: store.db.redis.llen(waiting) == 0 == store.db.redis.hlen(f"{settings.key_prefix}unacked")
    )
    assert "ERROR" not in io.text()
    assert io.terminate() == 0


@pytest.mark.usefixtures("worker")
def test_a_worker_answers_what_flower_asks(settings: Settings) -> None:
    app = make_app(settings)
    inspect = app.control.inspect(timeout=20, limit=1)
    [stats] = inspect.stats().values()
    assert stats["pool"]["max-concurrency"] == settings.concurrency
    [queues] = app.control.inspect(timeout=20, limit=1).active_queues().values()
    taken = {queue_of(priority, model) for priority in Priority for model in ("", "scripted")}
    assert {queue["name"] for queue in queues} == taken
    app.close()


@pytest.mark.usefixtures("worker")
def test_events_tell_flower_the_prompt_and_the_result(
    settings: Settings, store: JobStore, publisher: Publisher
) -> None:
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
            submitted(store, publisher, f"What is this? {SCRIPT}")
            submitted(store, publisher, "fail=decode_failed")
            drain_until({"task-succeeded", "task-failed"})
    assert {"task-sent", "task-received", "task-started", "task-succeeded", "task-failed"} <= set(seen)
    assert seen["task-received"]["args"] == repr(f"What is this? {SCRIPT}")
    assert re.fullmatch(
        r"'7 tokens, [\d.]+ tok/s, 4 steps, 1\.75 tokens/step, lookup 60% accepted, stop \| What is this\?'",
        str(seen["task-succeeded"]["result"]),
    )
    assert seen["task-failed"]["exception"] == "decode_failed: as the script says"
    app.close()
