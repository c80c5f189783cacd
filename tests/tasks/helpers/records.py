"""Short ways to say what the tests of the job system say often."""

from __future__ import annotations

from typing import Any

from tasks.base.queue_names import list_key
from tasks.base.settings import Settings
from tasks.batches.store import BatchStore
from tasks.broker.publisher import Publisher
from tasks.files.records import FileRecords, NewFile, Purpose
from tasks.records.claim import Claim, QueueMessage
from tasks.records.job import Job, NewJob, Priority, Status
from tasks.store.jobs import ClaimRejection, JobStore
from tests.support.workers import WAIT_S, wait_until

WORKER = "here:1"


def new(prompt: str = "hi", **fields: Any) -> NewJob:
    return NewJob(request={"prompt": prompt, "seed": 1, "max_tokens": 16}, **fields)


def queued(store: JobStore, prompt: str = "hi", **fields: Any) -> str:
    """A stored job without a message."""
    return store.create(new(prompt, **fields))[0].id


def claimed(store: JobStore, job_id: str, token: str = "token") -> Claim:
    claim = store.claim(job_id, WORKER, token)
    assert not isinstance(claim, ClaimRejection), claim
    return claim


def submitted(store: JobStore, publisher: Publisher, prompt: str, **fields: Any) -> str:
    """A stored job whose message is sent."""
    job, _ = store.create(new(prompt, **fields))
    publisher.publish_all([QueueMessage.of(job)])
    return job.id


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


def submit_many(store: JobStore, publisher: Publisher, count: int, prompt: str) -> list[str]:
    return [submitted(store, publisher, f"{prompt} n{n}", priority=Priority.BULK) for n in range(count)]
