"""The answers to requests that failed: those of api.errors.TABLE, and in their shape all others."""

from __future__ import annotations

import http
import logging

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from api.errors import INVALID, SERVER, TABLE, Row, body
from tasks.errors import StoreUnavailable

log = logging.getLogger(__name__)


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
        row = Row(error.status_code, INVALID if error.status_code < 500 else SERVER, code)
        return JSONResponse(body(str(error.detail), row), row.status, error.headers)

    async def unexpected(_: Request, _error: Exception) -> JSONResponse:
        row = Row(500, SERVER, "internal_error")
        return JSONResponse(body("an internal error, which the gateway's log describes", row), row.status)

    for kind in TABLE:
        app.add_exception_handler(kind, known)
    app.add_exception_handler(HTTPException, by_framework)
    app.add_exception_handler(Exception, unexpected)
