"""One line of a window: as a request of the engine, and its end as the store and the output file have it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine import Completion, FinishReason
from tasks.records.batch import line_job_id
from tasks.records.claim import Claim
from tasks.records.job import Priority, Status
from tasks.records.packed_line import parts
from tasks.records.window import LineEnd, WindowClaim
from tasks.schema.batch_output import early_end, failed, succeeded
from tasks.worker.conversions import STATUS, incomplete, to_error, to_result
from tasks.worker.metrics import observe_job


@dataclass(frozen=True, slots=True, eq=False)
class OpenLine:
    """A line that may be in the engine. claim: as of a job, as it is converted like one. custom_id: JSON."""

    index: int
    custom_id: str
    number: int
    max_tokens: int
    claim: Claim
    request_id: str
    bytes: int  # of its request


def opened(window: WindowClaim, index: int, waited_s: float) -> OpenLine:
    """waited_s: since the window was claimed."""
    number, max_tokens, custom_id, request = parts(window.lines[index])
    job_id = line_job_id(window.batch_id, number)
    claim = Claim(
        job_id=job_id,
        fencing_token=window.fencing_token,
        attempts=window.attempts,
        request=json.loads(request),
        model=window.model,
        priority=Priority.BULK,
        deadline=window.deadline,
        created_at=window.created_at,
        claimed_at=window.claimed_at + waited_s,
        queued_at=window.queued_at,
        batch_id=window.batch_id,
        isolated=window.isolated,
    )
    request_id = f"{job_id}.{window.fencing_token}"
    return OpenLine(index, custom_id, number, max_tokens, claim, request_id, len(request))


def completed(line: OpenLine, completion: Completion, served: str) -> LineEnd:
    """served: the model of this worker."""
    result = to_result(line.claim, completion)
    observe_job(Priority.BULK, result["timing"])
    error = incomplete(line.claim, completion)
    status = STATUS[completion.finish_reason] if error is None else Status.FAILED
    record = _record(line, served, result)
    if status is Status.SUCCEEDED:
        entry = succeeded(line.number, line.custom_id, record)
    else:
        error = error or early_end(status)
        entry = failed(line.number, line.custom_id, record, error, result["text"])
    return LineEnd(
        line.index,
        status,
        entry,
        line.max_tokens,
        code=None if error is None else error["code"],
        cut=completion.finish_reason is FinishReason.LENGTH,
        input_tokens=completion.prompt_tokens,
        cached_tokens=completion.cached_tokens,
        output_tokens=completion.completion_tokens,
    )


def refused(line: OpenLine, problem: Exception, served: str) -> LineEnd:
    """Of a line that the engine refused, or that failed by our own fault."""
    error = to_error(line.claim, problem)
    entry = failed(line.number, line.custom_id, _record(line, served), error)
    return LineEnd(line.index, Status.FAILED, entry, line.max_tokens, code=error["code"])


def _record(line: OpenLine, served: str, result: Mapping[str, Any] | None = None) -> dict[str, Any]:
    claim = line.claim
    return {
        "id": claim.job_id,
        "created_at": claim.created_at,
        "model": claim.model or served,
        "request": claim.request,
        "result": result,
    }
