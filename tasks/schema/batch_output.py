"""Entries of a batch's output and error files, as lines of a segment: [line number, failed, entry].

An entry stays as it is made here until it is in the file. tasks/store/lua/lib/windows.lua makes the same of a
line that never ran. Where a function takes a record, it is one of a job's, as Job.to_json() gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.json_text import compact
from tasks.schema.openai_responses import answer, error_response

OK = 200
ENDINGS = {  # of lines that ended before their time, by their status
    "cancelled": "this line was cancelled before it ended",
    "expired": "the batch expired before this line ended",
}


def succeeded(number: int, custom_id: str, record: Mapping[str, Any]) -> str:
    """Of a line with an answer. custom_id: as JSON."""
    return _entry(record["id"], number, custom_id, response=_response(record["id"], OK, answer(record)))


def failed(
    number: int, custom_id: str, record: Mapping[str, Any], error: Mapping[str, Any], partial: str = ""
) -> str:
    """A refusal as HTTP would have given it, or an error with what there is of the answer."""
    refused = error_response(error, record["request"])
    if refused is not None:
        response = _response(record["id"], refused.status, {"error": refused.error})
        return _entry(record["id"], number, custom_id, failed=True, response=response)
    shown = {**error, "line": number} | ({"partial": partial} if partial else {})
    return _entry(record["id"], number, custom_id, failed=True, error=compact(shown))


def without_answer(job_id: str, number: int, custom_id: str, error: Mapping[str, Any]) -> str:
    """Of a line that never ran. error: as it is shown."""
    return _entry(job_id, number, custom_id, failed=True, error=compact(error))


def ended_early(job_id: str, number: int, custom_id: str, code: str, message: str) -> str:
    """Of a line that never ran, as its batch or its worker came to an end."""
    error = {"code": code, "message": message, "param": None, "line": number}
    return without_answer(job_id, number, custom_id, error)


def early_end(status: str) -> dict[str, Any]:
    """The error of a line that was cancelled, or that expired."""
    return {"code": f"batch_{status}", "message": ENDINGS[status], "param": None}


def number_of(line: str) -> int:
    """The line number in a line of a segment."""
    return int(line[1 : line.index(",")])


def _response(job_id: str, status: int, body: Mapping[str, Any]) -> str:
    return compact({"status_code": status, "request_id": job_id, "body": body})


def _entry(
    job_id: str,
    number: int,
    custom_id: str,
    *,
    failed: bool = False,
    response: str = "null",
    error: str = "null",
) -> str:
    request = f"batch_req_{job_id.removeprefix('job_')}"
    entry = f'{{"id":"{request}","custom_id":{custom_id},"response":{response},"error":{error}}}'
    return f"[{number},{'true' if failed else 'false'},{entry}]\n"
