"""Short ways to say what the tests of the job system say often."""

from __future__ import annotations

import json
from typing import Any

from tasks.base.queue_names import GENERATE, list_key, queue_of
from tasks.base.settings import Settings
from tasks.batches.store import BatchStore
from tasks.broker.celery_app import make_app
from tasks.files.records import FileRecords, NewFile, Purpose
from tasks.records.claim import Claim
from tasks.records.job import Job, NewJob, Priority, Status
from tasks.store.jobs import ClaimRejection, JobStore
from tests.support.workers import WAIT_S, wait_until

WORKER = "here:1"


def new(prompt: str = "hi", **fields: Any) -> NewJob:
    return NewJob(request={"prompt": prompt, "seed": 1, "max_tokens": 16}, **fields)


def queued(store: JobStore, prompt: str = "hi", **fields: Any) -> str:
    """A stored job whose message is sent."""
    return store.create(new(prompt, **fields)).id


def unsent(store: JobStore, prompt: str = "hi", **fields: Any) -> str:
    """A queued job whose message its list did not take; no other may be in it."""
    job = new(prompt, **fields)
    broken = list_key(store.db.settings, job.priority)
    assert store.db.redis.set(broken, "not a list", nx=True)
    store.create(job)
    store.db.redis.delete(broken)
    return job.id


def send_again(settings: Settings, job_id: str) -> None:
    """Another message of an interactive job, made by Celery itself."""
    with make_app(settings) as app:
        app.send_task(GENERATE, (job_id,), task_id=job_id, queue=queue_of(Priority.INTERACTIVE))


def messages(store: JobStore, priority: Priority = Priority.INTERACTIVE, model: str = "") -> list[Any]:
    """Those that wait, oldest first."""
    texts = store.db.redis.lrange(list_key(store.db.settings, priority, model), 0, -1)
    return [json.loads(text) for text in texts[::-1]]


def sent_ids(store: JobStore, priority: Priority = Priority.INTERACTIVE, model: str = "") -> list[str]:
    """Of the jobs whose messages wait, oldest first."""
    return [message["headers"]["id"] for message in messages(store, priority, model)]


def lose_messages(store: JobStore) -> None:
    for name in store.db.redis.scan_iter(f"{store.db.prefix}medusaq.*"):
        store.db.redis.delete(name)


def is_sent(store: JobStore, job: Job) -> bool:
    """Whether it was sent, not deferred."""
    return bool(store.db.redis.hexists(f"{store.db.prefix}job:{job.id}", "counted"))


def claimed(store: JobStore, job_id: str, token: str = "token") -> Claim:
    claim = store.claim(job_id, WORKER, token)
    assert not isinstance(claim, ClaimRejection), claim
    return claim


def ended(store: JobStore, job_id: str, timeout_s: float = WAIT_S) -> Job:
    """The job once it is terminal."""
    wait_until(lambda: store.get(job_id).terminal, timeout_s, report=lambda: str(store.get(job_id)))
    return store.get(job_id)


def waiting_for(store: JobStore, job_id: str, status: Status, timeout_s: float = WAIT_S) -> Job:
    wait_until(lambda: store.get(job_id).status is status, timeout_s, report=lambda: str(store.get(job_id)))
    return store.get(job_id)


def put_message(store: JobStore, settings: Settings, priority: Priority = Priority.INTERACTIVE) -> None:
    """Something in the Celery list, so that it is not empty."""
    store.db.redis.lpush(list_key(settings, priority), "{}")


def batch_store(store: JobStore) -> BatchStore:
    """With records of input files, file_x and file_y, whose contents are never read."""
    files = FileRecords(store.db)
    for file_id in ("file_x", "file_y"):
        files.begin(file_id)
        files.create(NewFile(file_id, 1, "a.jsonl", Purpose.BATCH))
    return BatchStore(store.db)


def submit_many(store: JobStore, count: int, prompt: str) -> list[str]:
    return [queued(store, f"{prompt} n{n}", priority=Priority.BULK) for n in range(count)]


def ended_long_ago(batches: BatchStore, batch_id: str) -> None:
    """So that Redis cannot forget the end any more, and what the batch left may be removed."""
    key = f"{batches.prefix}batch:{batch_id}"
    batches._redis.hset(key, f"{batches.get(batch_id).status.value}_at", 0)
