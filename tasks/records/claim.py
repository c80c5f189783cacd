"""A job claimed by a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tasks.records.job import Priority


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
    streaming: bool = False  # a client reads its text while it is generated
    queued_at: float = 0.0  # when its message was last sent
    batch_id: str | None = None
    traceparent: str = ""
    isolated: bool = False  # last attempt: runs alone in the engine, counts from start_isolated() on
