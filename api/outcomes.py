"""Jobs that did not succeed, as answers to whoever waited for them."""

from __future__ import annotations

from api.errors import ApiError, BadRequest, JobCancelled, JobUnsuccessful, NotInTime, UnknownModel
from tasks.job import Job, Status

MODEL_NOT_FOUND = "model_not_found"


def failure(job: Job) -> ApiError | None:
    """Why an ended job has no whole answer; None for one that has."""
    if job.status is Status.SUCCEEDED:
        return None
    if job.error is not None:
        message, code, param = job.error["message"], job.error["code"], job.error["param"]
        if code == MODEL_NOT_FOUND:
            return UnknownModel(message)
        if param is not None:
            return BadRequest(message, code=code, param=param)
        return JobUnsuccessful(f"{job.id} failed: {message}", code=code)
    if job.status is Status.EXPIRED:
        return NotInTime(f"{job.id} did not end before its deadline")
    return JobCancelled(f"{job.id} was {job.status} before it ended")
