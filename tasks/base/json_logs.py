"""JSON logging: one line per record, with the ids of jobs, batches and HTTP requests as fields."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pythonjsonlogger.json import JsonFormatter

JOB = re.compile(r"\bjob_[0-9a-f]{32}(?:-\d+)?\b")
BATCH = re.compile(r"\bbatch_[0-9a-f]{32}\b")
OF_BATCH = re.compile(r"(?:job|win)_([0-9a-f]{32})-\d+")  # a line of a batch, or a window of lines
KEPT = {"time", "level", "logger", "message", "exc_info", "stack_info"}

_about: ContextVar[str] = ContextVar("about", default="")
_request: ContextVar[str] = ContextVar("request", default="")


@contextmanager
def about(work_id: str) -> Iterator[None]:
    """Add the id of a job, or the batch of a window, to every record that is logged inside the context."""
    token = _about.set(work_id)
    try:
        yield
    finally:
        _about.reset(token)


def about_request(request_id: str) -> None:
    """Add the id of an HTTP request to every record that this task, and what it starts, logs from now on."""
    _request.set(request_id)


class JsonLines(JsonFormatter):
    """Formats the fields in KEPT and the ids. Celery has others, of tasks, which nobody needs."""

    def __init__(self) -> None:
        super().__init__(
            "%(levelname)s %(name)s %(message)s",
            rename_fields={"levelname": "level", "name": "logger"},
            timestamp="time",
            json_ensure_ascii=False,
        )

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in log_data.items() if name in KEPT}
        request = {"request_id": request_id} if (request_id := _request.get()) else {}
        return kept | request | _ids(f"{kept.get('message', '')} {_about.get()}")


def _ids(text: str) -> dict[str, str]:
    """The job id and the batch id in the text; neither if there are several of its kind."""
    jobs = set(JOB.findall(text))
    batches = set(BATCH.findall(text)) | {f"batch_{found}" for found in OF_BATCH.findall(text)}
    found = {"job_id": jobs, "batch_id": batches}
    return {name: ids.pop() for name, ids in found.items() if len(ids) == 1}


def log_json(level: int | str) -> None:
    """Write the records of all loggers of this process to stderr as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    quiet_pool()


def quiet_pool() -> None:
    """Silence Celery's pool at DEBUG: it logs whole messages."""
    logging.getLogger("celery.pool").setLevel(logging.INFO)
