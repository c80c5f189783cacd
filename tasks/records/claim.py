"""A job that a worker holds, and one whose message must be sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tasks.records.job import Job, Priority


@dataclass(frozen=True, slots=True)
class Claim:
    """A job this worker holds. Times are Unix seconds by the clock of Redis."""

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
    streaming: bool = False  # somebody listened already when it was claimed
    queued_at: float = 0.0  # when its message was last sent
    batch_id: str | None = None
    traceparent: str = ""
    isolated: bool = False  # its last attempt, which counts from begin() on, with nothing else in the engine
    model_queue: str = ""


@dataclass(frozen=True, slots=True)
class QueueMessage:
    """A queued job whose Celery message must be sent. lane: as in Job."""

    job_id: str
    priority: Priority
    preview: str
    model_queue: str = ""

    @classmethod
    def of(cls, job: Job) -> QueueMessage:
        return cls(job.id, job.priority, job.preview, job.model_queue)
