"""The line that Flower shows as the result of a task, and what is logged: nothing of prompts and answers."""

from __future__ import annotations

import logging

from tasks.base.errors import JobFailed
from tasks.records.job import Job, Status, result_line


def stored_end_line(job: Job) -> str:
    """The result_line() of a stored job; raises JobFailed for a failed one."""
    if job.error is not None:
        raise JobFailed(job.error["code"])
    return unbegun(job.status) if job.result is None else result_line(job.result)


def unbegun(status: Status) -> str:
    return f"{status} before it ran"


def log_ends_alone() -> None:
    """One line for each task, at its end, and none when its message is received."""
    logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)
