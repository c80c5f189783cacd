"""Every way a request can fail, as HTTP: one table from exception to status, type and code.

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

import http
import logging
from typing import NamedTuple

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from tasks.errors import IdempotencyConflict, JobNotFinished, JobNotFound, StoreUnavailable

log = logging.getLogger(__name__)

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


class _Row(NamedTuple):
    status: int
    type: str
    code: str
    param: str | None = None


TABLE: dict[type[Exception], _Row] = {
    BadRequest: _Row(400, INVALID, "invalid_value"),
    UnknownModel: _Row(404, INVALID, "model_not_found", "model"),
    BodyTooLarge: _Row(413, INVALID, "body_too_large"),
    UnsupportedMedia: _Row(415, INVALID, "unsupported_media_type", "Content-Type"),
    NotInTime: _Row(504, SERVER, "not_in_time"),
    JobCancelled: _Row(409, INVALID, "job_cancelled"),
    JobUnsuccessful: _Row(500, SERVER, "job_failed"),
    JobNotFound: _Row(404, INVALID, "job_not_found"),
    JobNotFinished: _Row(409, INVALID, "job_not_finished"),
    IdempotencyConflict: _Row(409, INVALID, "idempotency_conflict", "Idempotency-Key"),
    StoreUnavailable: _Row(503, SERVER, "store_unavailable"),
}


def body(message: str, row: _Row, code: str | None = None, param: str | None = None) -> dict[str, object]:
    """The error object of a response."""
    error = {"message": message, "type": row.type, "param": param or row.param, "code": code or row.code}
    return {"error": error}


def respond(error: Exception, retry_after_s: int) -> JSONResponse:
    """The response for an exception of TABLE."""
    row = TABLE[type(error)]
    headers = (
        {"Retry-After": str(retry_after_s)} if row.status == http.HTTPStatus.SERVICE_UNAVAILABLE else None
    )
    code, param = getattr(error, "code", None), getattr(error, "param", None)
    return JSONResponse(body(str(error), row, code, param), row.status, headers)


def install(app: FastAPI, retry_after_s: int) -> None:
    """Answer with TABLE, and in the same shape for unknown routes and our own faults."""

    async def known(_: Request, error: Exception) -> JSONResponse:
        if isinstance(error, StoreUnavailable):
            log.warning("%s", error)
        return respond(error, retry_after_s)

    async def by_framework(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        code = http.HTTPStatus(error.status_code).name.lower()
        row = _Row(error.status_code, INVALID if error.status_code < 500 else SERVER, code)
        return JSONResponse(body(str(error.detail), row), row.status, error.headers)

    async def unexpected(_: Request, _error: Exception) -> JSONResponse:
        row = _Row(500, SERVER, "internal_error")
        return JSONResponse(body("an internal error, which the gateway's log describes", row), row.status)

    for kind in TABLE:
        app.add_exception_handler(kind, known)
    app.add_exception_handler(HTTPException, by_framework)
    app.add_exception_handler(Exception, unexpected)
