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

from tasks.batches.segments import new_segment_name, write_segment
from tasks.batches.store import BatchStore
from tasks.files.base import FileStore
from tasks.records.batch_work import Active, EndedJob
from tasks.schema.batch_output import dumped, early_end, failed, succeeded

SEGMENT_RESULTS = 512  # at most in one segment
FULL = 256  # results that are collected at once
# Results are gathered for WAIT_SHARE of the batch's age, within these two limits: a night's batch
# has hundreds of segments, not thousands.
FIRST_WAIT_S = 0.5
MOST_WAIT_S = 20.0
WAIT_SHARE = 0.02
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


def to_output_line(job: EndedJob) -> str:
    """The entry of a job's line: an answer, a refusal as HTTP would have given it, or an error."""
    custom_id = dumped(job.custom_id)
    if job.status == SUCCEEDED:
        return succeeded(job.line, custom_id, job.record)
    return failed(job.line, custom_id, job.record, _failure(job), (job.result or {}).get("text", ""))


def _failure(job: EndedJob) -> dict[str, Any]:
    return job.error or early_end(job.status)


def _tokens(jobs: Iterable[EndedJob]) -> tuple[int, int, int]:
    """Input, cached and output tokens, those of broken-off answers too."""
    usages = [job.result["usage"] for job in jobs if job.result is not None]
    return (
        sum(u["prompt_tokens"] for u in usages),
        sum(u["prompt_tokens_details"]["cached_tokens"] for u in usages),
        sum(u["completion_tokens"] for u in usages),
    )
