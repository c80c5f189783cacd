"""Logs as JSON, a line for each record, with the ids of jobs and batches as fields."""

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
LINE_JOB = re.compile(r"job_([0-9a-f]{32})-\d+")  # the job of a batch's line
KEPT = {"time", "level", "logger", "message", "exc_info", "stack_info"}

_about: ContextVar[str] = ContextVar("about", default="")


@contextmanager
def about(job_id: str) -> Iterator[None]:
    """What is logged inside is of this job, whether or not it says so."""
    token = _about.set(job_id)
    try:
        yield
    finally:
        _about.reset(token)


class JsonLines(JsonFormatter):
    """Only fields that are named here: Celery adds others, the beginnings of prompts among them."""

    def __init__(self) -> None:
        super().__init__(
            "%(levelname)s %(name)s %(message)s",
            rename_fields={"levelname": "level", "name": "logger"},
            timestamp="time",
            json_ensure_ascii=False,
        )

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in log_data.items() if name in KEPT}
        return kept | _ids(f"{kept.get('message', '')} {_about.get()}")


def _ids(text: str) -> dict[str, str]:
    """Those that the text names, where it is one of each."""
    jobs = set(JOB.findall(text))
    batches = set(BATCH.findall(text)) | {f"batch_{found}" for found in LINE_JOB.findall(text)}
    found = {"job_id": jobs, "batch_id": batches}
    return {name: ids.pop() for name, ids in found.items() if len(ids) == 1}


def log_json(level: int | str) -> None:
    """To stderr, from every logger of this process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    quiet_pool()


def quiet_pool() -> None:
    """At DEBUG, Celery's pool logs whole messages, which hold the beginnings of prompts."""
    logging.getLogger("celery.pool").setLevel(logging.INFO)
