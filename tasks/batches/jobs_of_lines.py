"""Lines that earlier releases sent as jobs: their results are collected as those releases did.

Goes with the release after the one that brought windows, with batches/next_jobs.lua, batches/jobs_stored.lua
and what lib/job_states.lua does for jobs of a batch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from common.json_text import compact
from tasks.batches.segments import new_segment_name, write_segment
from tasks.batches.store import check_lead
from tasks.files.base import FileStore
from tasks.schema.batch_output import early_end, failed, succeeded
from tasks.store.scripts import Scripts

SUCCEEDED = "succeeded"
CUT = "length"  # finish_reason


@dataclass(frozen=True, slots=True)
class EndedJob:
    """The end of one line's job. record: the fields of the job's record that a response needs."""

    job_id: str
    line: int
    custom_id: str
    status: str
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    record: dict[str, Any]


def collect_jobs(scripts: Scripts, files: FileStore, token: str, batch_id: str, most: int) -> int:
    """Move results of jobs into a segment; returns how many. Raises LeadLost and what the stores raise."""
    status, *rest = scripts.run("batches/next_jobs", token, batch_id, most)
    check_lead(status)
    number, *records = rest
    if not records:
        return 0
    jobs = [_ended(values) for values in records if values[0]]  # others have no record any more
    name = new_segment_name(int(number))
    write_segment(files, batch_id, name, [to_output_line(job) for job in jobs])
    input_tokens, cached_tokens, output_tokens = _tokens(jobs)
    arguments = {
        "token": token,
        "id": batch_id,
        "number": int(number),
        "name": name,
        "taken": len(records),
        "input_tokens": input_tokens,
        "cached_tokens": cached_tokens,
        "output_tokens": output_tokens,
        "codes": Counter(_failure(job)["code"] for job in jobs if job.status != SUCCEEDED),
        "cut": sum((job.result or {}).get("finish_reason") == CUT for job in jobs),
    }
    status = scripts.run("batches/jobs_stored", arguments)
    check_lead(status)
    return len(records) if status == "ok" else 0


def to_output_line(job: EndedJob) -> str:
    """The entry of a job's line: an answer, a refusal as HTTP would have given it, or an error."""
    custom_id = compact(job.custom_id)
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


def _ended(values: Sequence[str]) -> EndedJob:
    job_id, line, custom_id, status, result_text, error, model, created_at, request = values
    result = json.loads(result_text) if result_text else None
    record = {
        "id": job_id,
        "created_at": float(created_at) / 1000,
        "model": model or None,
        "request": json.loads(request),
        "result": result,
    }
    failure = json.loads(error) if error else None
    return EndedJob(job_id, int(line), custom_id, status, result, failure, record)
