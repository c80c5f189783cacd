"""Moves results of ended jobs from Redis into segment files, and counts their tokens and error codes once.

Completed and failed lines are counted where they end: jobs in lib/job_states.lua, invalid lines in
validated.lua. Lines that were never sent are in neither count.

A segment is written first, under a unique name, and recorded afterwards. If the process is killed in
between, or another leads by then, the file is never recorded, and its results are written again to another
segment.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tasks.batches.segments import Result, new_segment_name, write_segment
from tasks.batches.store import BatchStore
from tasks.files.base import FileStore
from tasks.records.batch_work import Active, EndedJob
from tasks.schema.openai_responses import answer, error_response

SEGMENT_RESULTS = 512  # at most in one segment
FULL = 256  # results that are collected at once
# Results are gathered for WAIT_SHARE of the batch's age, within these two limits: a night's batch
# has hundreds of segments, not thousands.
FIRST_WAIT_S = 0.5
MOST_WAIT_S = 20.0
WAIT_SHARE = 0.02
OK = 200
SUCCEEDED = "succeeded"
CUT = "length"  # finish_reason


class Collector:
    """One thread."""

    def __init__(self, batches: BatchStore, files: FileStore, token: str) -> None:
        self._batches, self._files, self._token = batches, files, token
        self._last: dict[str, float] = {}  # batch -> when it was last collected, on the monotonic clock

    def collect(self, active: Active, now: float) -> int:
        """Collect what is due of one batch; return how many results were taken.

        now: Unix seconds. Raises LeadLost and what the stores raise.
        """
        batch = active.batch
        if not active.uncollected or not self._due(active, now):
            return 0
        ended = self._batches.next_results(self._token, batch.id, SEGMENT_RESULTS)
        if not ended.taken:
            return 0
        jobs = ended.jobs
        results = [to_output_line(job) for job in jobs]
        name = new_segment_name(ended.number)
        write_segment(self._files, batch.id, name, results)
        codes = Counter(_failure(job)["code"] for job in jobs if job.status != SUCCEEDED)
        cut = sum((job.result or {}).get("finish_reason") == CUT for job in jobs)
        counted = self._batches.segment_stored(
            self._token, batch.id, ended.number, name, ended.taken, _tokens(jobs), codes, cut
        )
        self._last[batch.id] = time.monotonic()
        return ended.taken if counted else 0

    def forget(self, batch_id: str) -> None:
        self._last.pop(batch_id, None)

    def _due(self, active: Active, now: float) -> bool:
        if active.uncollected >= FULL or not active.live:
            return True
        age = now - active.batch.created_at
        wait = min(max(FIRST_WAIT_S, age * WAIT_SHARE), MOST_WAIT_S)
        return time.monotonic() - self._last.get(active.batch.id, float("-inf")) >= wait


def to_output_line(job: EndedJob) -> Result:
    """The entry of a job's line: an answer, a refusal as HTTP would have given it, or an error."""
    entry: dict[str, Any] = {
        "id": f"batch_req_{job.job_id.removeprefix('job_')}",
        "custom_id": job.custom_id,
        "response": None,
        "error": None,
    }
    if job.status == SUCCEEDED:
        body = answer(job.record)
        entry["response"] = {"status_code": OK, "request_id": job.job_id, "body": body}
        return Result(job.line, failed=False, entry=entry)
    error = _failure(job)
    if (response := error_response(error, job.record["request"])) is not None:
        entry["response"] = {
            "status_code": response.status,
            "request_id": job.job_id,
            "body": {"error": response.error},
        }
    else:
        entry["error"] = {**error, "line": job.line}
        if job.result is not None and job.result["text"]:
            entry["error"]["partial"] = job.result["text"]
    return Result(job.line, failed=True, entry=entry)


def _failure(job: EndedJob) -> dict[str, Any]:
    return job.error or {"code": f"batch_{job.status}", "message": REASONS[job.status], "param": None}


REASONS = {
    "cancelled": "this line was cancelled before it ended",
    "expired": "the batch expired before this line ended",
}


def _tokens(jobs: Iterable[EndedJob]) -> tuple[int, int, int]:
    """Input, cached and output tokens, those of broken-off answers too."""
    usages = [job.result["usage"] for job in jobs if job.result is not None]
    return (
        sum(u["prompt_tokens"] for u in usages),
        sum(u["prompt_tokens_details"]["cached_tokens"] for u in usages),
        sum(u["completion_tokens"] for u in usages),
    )
