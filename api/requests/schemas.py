"""Response schemas of jobs. Request schemas: tasks/schema/job_request.py."""

from __future__ import annotations

from typing import Any, Literal

from fastapi.responses import JSONResponse
from pydantic import BaseModel

from api.requests.parsing import MAX_IDEMPOTENCY_KEY
from tasks.records.job import Priority, Status


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]


class Timing(BaseModel):
    """Seconds since the job was created; tokens_per_s excludes the time in the queue."""

    queue_s: float
    first_token_s: float | None
    total_s: float
    tokens_per_s: float


class Drafts(BaseModel):
    """Draft tokens of one source. acceptance is accepted / verified."""

    verified: int
    accepted: int
    acceptance: float | None


class Speculation(BaseModel):
    """steps: decoding steps of this job. sources: the draft sources used: grammar, lookup, medusa."""

    steps: int
    tokens_per_step: float
    sources: dict[str, Drafts]


class Result(BaseModel):
    text: str
    token_ids: list[int] | None = None  # only if the request asks for them
    finish_reason: str
    usage: Usage
    logprobs: list[dict[str, Any]] | None
    timing: Timing
    speculation: Speculation | None = None  # None in results of older workers


class JobError(BaseModel):
    code: str
    message: str
    param: str | None


class JobRecord(BaseModel):
    """A job. Times are Unix seconds; a cancelled or expired job keeps its partial result."""

    id: str
    object: Literal["job"]
    status: Status
    priority: Priority
    model: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    deadline: float | None
    attempts: int
    worker: str | None
    metadata: dict[str, str]
    request: dict[str, Any]
    result: Result | None
    error: JobError | None


class JobList(BaseModel):
    object: Literal["list"]
    data: list[JobRecord]
    has_more: bool
    first_id: str | None
    last_id: str | None


def query(name: str, schema: dict[str, Any], description: str = "") -> dict[str, Any]:
    """The OpenAPI description of a query parameter that a route parses itself."""
    return {"name": name, "in": "query", "schema": schema, "description": description}


PREFER = {"name": "Prefer", "in": "header", "schema": {"type": "string"}, "example": "wait=10"}
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_IDEMPOTENCY_KEY},
}
PAGE_PARAMETERS = [
    query("limit", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}),
    query("after", {"type": "string"}, "The page starts after the object with this id."),
]


def page(data: list[dict[str, Any]], has_more: bool, last_id: str | None = None) -> JSONResponse:
    """A list in OpenAI's format. last_id: start of the next page, if it is not the last id in data."""
    first, last = (data[0]["id"], last_id or data[-1]["id"]) if data else (None, last_id)
    return JSONResponse(
        {"object": "list", "data": data, "has_more": has_more, "first_id": first, "last_id": last}
    )


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    error: ErrorDetail
