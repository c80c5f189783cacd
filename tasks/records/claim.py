"""A job claimed by a worker, and the Celery message of a queued job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tasks.records.job import Job, Priority


@dataclass(frozen=True, slots=True)
class Claim:
    """A job claimed by this worker. Times are Unix seconds by the clock of Redis."""

    job_id: str
    fencing_token: int
    attempts: int
    request: dict[str, Any]
    model: str | None
    priority: Priority
    deadline: float | None
    created_at: float
    claimed_at: float
    preview: str
    streaming: bool = False  # a client reads its text while it is generated
    queued_at: float = 0.0  # when its message was last sent
    batch_id: str | None = None
    traceparent: str = ""
    isolated: bool = False  # last attempt: runs alone in the engine, counts from start_isolated() on
    model_queue: str = ""


@dataclass(frozen=True, slots=True)
class QueueMessage:
    """The Celery message to send for a queued job. model_queue: as in Job."""

    job_id: str
    priority: Priority
    preview: str
    model_queue: str = ""

    @classmethod
    def of(cls, job: Job) -> QueueMessage:
        return cls(job.id, job.priority, job.preview, job.model_queue)
