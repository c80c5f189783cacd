"""The answers to requests that failed: those of api.errors.TABLE, and in their shape all others."""

from __future__ import annotations

import http
import logging

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from api.errors import INVALID, SERVER, TABLE, Row, body
from tasks.errors import FileStoreUnavailable, ObjectMissing, StoreUnavailable

DO_NOT_RETRY = {"x-should-retry": "false"}  # OpenAI's client repeats 409 and 5xx by itself without it

log = logging.getLogger(__name__)


def error_object(error: Exception) -> dict[str, object]:
    """The body that tells of an exception; one that is not in TABLE is our own fault and stays unnamed."""
    row = TABLE.get(type(error))
    if row is None:
        return body(
            "an internal error, which the gateway's log describes", Row(500, SERVER, "internal_error")
        )
    return body(str(error), row, getattr(error, "code", None), getattr(error, "param", None))


def respond(error: Exception, retry_after_s: int) -> JSONResponse:
    """The response for an exception of TABLE."""
    row = TABLE[type(error)]
    headers = dict(getattr(error, "headers", None) or {})
    if row.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = str(retry_after_s)
    if not row.again:
        headers |= DO_NOT_RETRY
    return JSONResponse(error_object(error), row.status, headers)


def install(app: FastAPI, retry_after_s: int) -> None:
    """Answer with TABLE, and in the same shape for unknown routes and our own faults."""

    async def known(_: Request, error: Exception) -> JSONResponse:
        if isinstance(error, StoreUnavailable | FileStoreUnavailable | ObjectMissing):
            log.warning("%s", error)
        return respond(error, retry_after_s)

    async def by_framework(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        code = http.HTTPStatus(error.status_code).name.lower()
        row = Row(error.status_code, INVALID if error.status_code < 500 else SERVER, code)
        return JSONResponse(body(str(error.detail), row), row.status, error.headers)

    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse(error_object(error), http.HTTPStatus.INTERNAL_SERVER_ERROR)

    for kind in TABLE:
        app.add_exception_handler(kind, known)
    app.add_exception_handler(HTTPException, by_framework)
    app.add_exception_handler(Exception, unexpected)
