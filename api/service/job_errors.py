"""Converts the outcome of an unsuccessful job into an API error."""

from __future__ import annotations

from api.http.errors import ApiError, BadRequest, JobCancelled, JobUnsuccessful, NotInTime, UnknownModel
from tasks.records.job import Job, Status
from tasks.schema.openai_responses import MODEL_NOT_FOUND, error_response


def failure(job: Job) -> ApiError | None:
    """The error of a job that has ended; None if it succeeded."""
    if job.status is Status.SUCCEEDED:
        return None
    if job.error is not None:
        message, code = job.error["message"], job.error["code"]
        if (response := error_response(job.error, job.request)) is None:
            return JobUnsuccessful(f"{job.id} failed: {message}", code=code)
        if code == MODEL_NOT_FOUND:
            return UnknownModel(message)
        return BadRequest(response.error["message"], code=code, param=response.error["param"])
    if job.status is Status.EXPIRED:
        return NotInTime(f"{job.id} did not end before its deadline")
    return JobCancelled(f"{job.id} was {job.status} before it finished")
