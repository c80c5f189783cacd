"""A job that failed: what a batch says of it is what HTTP says to whoever waits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.http.error_responses import error_object, respond
from api.service.job_errors import failure
from tasks.batches.jobs_of_lines import EndedJob, to_output_line
from tasks.records.job import Job, Priority, Status

MESSAGES = [{"role": "user", "content": "x"}]


def line(status: Status, request: dict[str, Any], error: dict[str, Any] | None) -> dict[str, Any]:
    """The entry of a line whose job ended so."""
    record = {"id": "job_1-1", "created_at": 1.0, "model": "m", "request": request, "result": None}
    line = to_output_line(EndedJob("job_1-1", 7, "a", status.value, None, error, record))
    number, is_failed, entry = json.loads(line)
    assert (number, is_failed) == (7, True)
    return dict(entry)


@pytest.mark.parametrize(
    ("error", "status", "param"),
    [
        ({"code": "model_not_found", "message": "this worker serves 'm'", "param": "model"}, 404, "model"),
        ({"code": "no_heads", "message": "decoding needs heads", "param": "decoding"}, 400, "decoding"),
        ({"code": "invalid_request", "message": "prompt is empty", "param": "prompt"}, 400, "messages"),
    ],
)
def test_a_refusal_is_the_same(error: dict[str, Any], status: int, param: str) -> None:
    request = {"messages": MESSAGES}
    response = line(Status.FAILED, request, error)["response"]
    job = Job(
        id="job_1",
        status=Status.FAILED,
        priority=Priority.BULK,
        model="m",
        created_at=1.0,
        started_at=None,
        finished_at=None,
        deadline=None,
        attempts=1,
        worker=None,
        metadata={},
        request=request,
        result=None,
        error=error,
    )
    online = failure(job)
    assert online is not None
    assert (response["status_code"], respond(online).status_code) == (status, status)
    assert response["body"] == error_object(online)
    assert response["body"]["error"]["param"] == param


def test_a_failure_that_is_not_the_requests_is_no_response() -> None:
    error = {"code": "decode_failed", "message": "m", "param": None}
    entry = line(Status.FAILED, {"prompt": "x"}, error)
    assert (entry["response"], entry["error"]) == (None, {**error, "line": 7})


def test_one_line_that_was_cancelled_does_not_blame_the_batch() -> None:
    error = line(Status.CANCELLED, {"prompt": "x"}, None)["error"]
    assert (error["code"], error["message"]) == ("batch_cancelled", "this line was cancelled before it ended")
