"""Every way a request can fail: one table from exception to status, type and code.

Without the web framework, so that a command which checks requests need not load it.

ApiError
├── BadRequest             a field, header or query parameter is wrong; `param` names it
├── UnknownModel           live workers exist, and none serves this model
├── BodyTooLarge           the body is over max_body_bytes
├── UnsupportedMedia       the body is not declared as JSON
├── NotInTime              the job behind /generate or /compare has not ended yet, and goes on
├── JobCancelled           somebody cancelled the job behind /generate or /compare
└── JobUnsuccessful        the job behind /generate or /compare failed

The body is always {"error": {"message", "type", "param", "code"}}.
"""

from __future__ import annotations

from typing import NamedTuple

from tasks.errors import IdempotencyConflict, JobNotFinished, JobNotFound, StoreUnavailable

INVALID = "invalid_request_error"
SERVER = "server_error"


class ApiError(Exception):
    """A request the gateway refuses; code and param may be set per case."""

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class BadRequest(ApiError):
    """A field, header or query parameter is wrong."""


class UnknownModel(ApiError):
    """Live workers exist, and none of them serves this model."""


class BodyTooLarge(ApiError):
    """The body is over the limit."""


class UnsupportedMedia(ApiError):
    """The body is not declared as JSON: a browser's form could send it from any page."""


class NotInTime(ApiError):
    """The job behind the answer has not ended in time; it goes on."""


class JobCancelled(ApiError):
    """Somebody cancelled the job behind the answer."""


class JobUnsuccessful(ApiError):
    """The job behind the answer failed, through no fault of the request."""


class Row(NamedTuple):
    status: int
    type: str
    code: str
    param: str | None = None


TABLE: dict[type[Exception], Row] = {
    BadRequest: Row(400, INVALID, "invalid_value"),
    UnknownModel: Row(404, INVALID, "model_not_found", "model"),
    BodyTooLarge: Row(413, INVALID, "body_too_large"),
    UnsupportedMedia: Row(415, INVALID, "unsupported_media_type", "Content-Type"),
    NotInTime: Row(504, SERVER, "not_in_time"),
    JobCancelled: Row(409, INVALID, "job_cancelled"),
    JobUnsuccessful: Row(500, SERVER, "job_failed"),
    JobNotFound: Row(404, INVALID, "job_not_found"),
    JobNotFinished: Row(409, INVALID, "job_not_finished"),
    IdempotencyConflict: Row(409, INVALID, "idempotency_conflict", "Idempotency-Key"),
    StoreUnavailable: Row(503, SERVER, "store_unavailable"),
}


def body(message: str, row: Row, code: str | None = None, param: str | None = None) -> dict[str, object]:
    """The error object of a response."""
    error = {"message": message, "type": row.type, "param": param or row.param, "code": code or row.code}
    return {"error": error}
