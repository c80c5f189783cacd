"""How model workers end: stopped, killed, by a prompt, by their engine; and what becomes of their jobs."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tasks.base.settings import Settings
from tasks.records.job import Status
from tasks.store.jobs import JobStore
from tasks.store.workers import Registry
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import Worker, Workers, wait_until
from tests.tasks.helpers.records import ended, queued, send_again, submit_many, unsent, waiting_for

pytestmark = pytest.mark.stack


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


def test_interactive_overtakes_bulk(redis_server: RedisServer, workers: Workers, engine_log: Log) -> None:
    settings = fast_settings(redis_server, slots=1)
    store = JobStore(settings)
    bulk = submit_many(store, 8, "delay=0.05")
    fast = [queued(store, f"delay=0.05 n{n}") for n in range(3)]
    workers.model(settings, env=engine_log.env)
    for job_id in (*bulk, *fast):
        ended(store, job_id)
    order = [request.partition(".")[0] for request in engine_log.lines("start")]
    assert order == [*fast, *bulk]
    store.close()


def test_sigterm_lets_running_jobs_finish_and_loses_no_message(
    store: JobStore, worker: Worker, workers: Workers, settings: Settings
) -> None:
    jobs = submit_many(store, 30, "delay=0.7")
    wait_until(lambda: store.get(jobs[settings.slots - 1]).status is not Status.QUEUED)
    assert worker.terminate() == 0
    statuses = [store.get(job_id).status for job_id in jobs]
    assert statuses.count(Status.SUCCEEDED) >= settings.slots
    assert Status.RUNNING not in statuses
    assert set(statuses) == {Status.SUCCEEDED, Status.QUEUED}
    assert Registry(store.db, settings.worker_ttl_s).live() == []
    workers.model(settings)
    for job_id in jobs:
        job = ended(store, job_id)
        assert (job.status, job.attempts) == (Status.SUCCEEDED, 1)


def test_sigterm_hands_back_what_does_not_finish_in_time(
    store: JobStore, worker: Worker, workers: Workers, settings: Settings
) -> None:
    long = [queued(store, f"delay=10 n{n}") for n in range(2)]
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
    store: JobStore, settings: Settings, workers: Workers, engine_log: Log
) -> None:
    workers.io(settings)
    first = workers.model(settings, env=engine_log.env)
    jobs = submit_many(store, 24, "delay=1")
    wait_until(lambda: len(engine_log.lines("end")) >= 6)
    first.kill()
    workers.model(settings, env=engine_log.env)
    for job_id in jobs:
        job = ended(store, job_id)
        assert job.status is Status.SUCCEEDED
        assert job.attempts <= 2
    assert store.db.redis.hgetall(f"{store.db.prefix}ended") == {"succeeded": str(len(jobs))}
    assert any(store.get(job_id).attempts == 2 for job_id in jobs)


def test_a_prompt_that_kills_workers_ends_as_worker_lost(redis_server: RedisServer, workers: Workers) -> None:
    settings = fast_settings(redis_server, max_attempts=2, lease_ms=600)
    store = JobStore(settings)
    workers.io(settings)
    poison = queued(store, "die=1")
    for _ in range(2):
        worker = workers.model(settings, ready=False)
        assert worker.process.wait(20) == -signal.SIGKILL
    job = ended(store, poison)
    assert job.error is not None
    assert (job.status, job.error["code"], job.attempts) == (Status.FAILED, "worker_lost", 2)
    store.close()


def test_jobs_beside_a_prompt_that_kills_workers_are_unharmed(
    redis_server: RedisServer, workers: Workers
) -> None:
    """They are lost as often as it is, but for the last time, when each has a worker to itself."""
    settings = fast_settings(redis_server, max_attempts=2, lease_ms=2000)
    store = JobStore(settings)
    workers.io(settings)
    poison = unsent(store, "die=1")
    beside = [queued(store, f"delay=2 n{n}") for n in range(3)]
    first = workers.model(settings, ready=False)
    for job_id in beside:
        waiting_for(store, job_id, Status.RUNNING, 20)
    send_again(settings, poison)
    assert first.process.wait(20) == -signal.SIGKILL

    def over() -> bool:
        return all(store.get(job_id).terminal for job_id in (poison, *beside))

    while not over():
        worker = workers.model(settings, ready=False)
        wait_until(lambda worker=worker: over() or worker.process.poll() is not None, report=worker.text)
    for job_id in beside:
        job = ended(store, job_id)
        assert (job.status, job.attempts) == (Status.SUCCEEDED, 2)
    error = store.get(poison).error
    assert error is not None
    assert error["code"] == "worker_lost"
    store.close()


def test_an_engine_that_closes_stops_its_worker_and_the_job_goes_on_elsewhere(
    redis_server: RedisServer, workers: Workers
) -> None:
    settings = fast_settings(redis_server, max_attempts=1, lease_ms=600)
    store = JobStore(settings)
    workers.io(settings)
    worker = workers.model(settings)
    job_id = queued(store, "close=1 delay=5")
    assert worker.process.wait(15) == 1
    error = ended(store, job_id).error
    assert error is not None
    assert error["code"] == "worker_lost"
    store.close()


def test_a_model_that_cannot_load_ends_with_one_line_and_code_3(settings: Settings, workers: Workers) -> None:
    worker = workers.model(settings, ready=False, env={"SCRIPTED_LOAD_ERROR": "/no.gguf: not a GGUF file"})
    assert worker.process.wait(20) == 3
    assert worker.text().splitlines()[-1] == "error: the model cannot be loaded: /no.gguf: not a GGUF file"
    assert "Traceback" not in worker.text()
