"""The line that Flower shows as the result of a task, and what of a task is logged."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from tasks.base.errors import JobFailed
from tasks.records.job import Job, Status, beginning, result_line

ANSWER_CHARS = 80  # of the answer shown in Flower, which keeps them in its state file
SEPARATOR = " | "  # before the answer; nothing before it contains one


def end_line(result: Mapping[str, Any]) -> str:
    """As result_line(), with the beginning of the answer."""
    text = beginning(result["text"], ANSWER_CHARS)
    return f"{result_line(result)}{SEPARATOR}{text}" if text else result_line(result)


def stored_end_line(job: Job) -> str:
    """As end_line(), of a stored job; raises JobFailed for a failed one."""
    if job.error is not None:
        raise JobFailed(f"{job.error['code']}: {job.error['message']}")
    return unbegun(job.status) if job.result is None else end_line(job.result)


def unbegun(status: Status) -> str:
    return f"{status} before it ran"


class WithoutAnswers(logging.Filter):
    """Cuts the answer from the line that Celery logs at the end of a task: no log has prompts or answers."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, Mapping) and "return_value" in record.args:
            shown, cut, _ = str(record.args["return_value"]).partition(SEPARATOR)
            record.args = {**record.args, "return_value": shown + shown[:1] * bool(cut)}
        return True


def log_ends_alone() -> None:
    """One line for each task, at its end and without its answer, and none when its message is received."""
    logging.getLogger("celery.app.trace").addFilter(WithoutAnswers())
    logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)
