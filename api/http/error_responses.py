"""The answers to requests that failed: those of api.http.errors.TABLE, and in their shape all others."""

from __future__ import annotations

import http
import logging
import math

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Scope

from api.http.errors import INVALID, SERVER, TABLE, ClientGone, Row, body
from api.http.headers import API_HEADERS
from tasks.base.errors import FileStoreFull, FileStoreUnavailable, ObjectMissing, StoreUnavailable
from tasks.schema.job_request import INVALID_VALUE

RETRY_AFTER_S = 2  # of 429 and 503 that name no other time: a Redis that restarts is back by then
DO_NOT_RETRY = {"x-should-retry": "false"}  # OpenAI's client repeats 409 and 5xx by itself without it

log = logging.getLogger(__name__)


# What Redis and the file store say names keys, folders and hosts, which are for the log.
SAID: dict[type[Exception], str] = {
    StoreUnavailable: "Redis does not answer, or did not do what was asked",
    FileStoreUnavailable: "the file store does not answer, or did not do what was asked",
    FileStoreFull: "the file store has no room left",
}


def error_object(error: Exception) -> dict[str, object]:
    """The body that tells of an exception; one that is not in TABLE is our own fault and stays unnamed."""
    row = TABLE.get(type(error))
    if row is None:
        return body(
            "an internal error, which the gateway's log describes", Row(500, SERVER, "internal_error")
        )
    message = SAID.get(type(error)) or str(error)
    return body(message, row, getattr(error, "code", None), getattr(error, "param", None))


def respond(error: Exception) -> JSONResponse:
    """The response for an exception of TABLE."""
    row = TABLE[type(error)]
    headers = dict(getattr(error, "headers", None) or {})
    if row.status in (http.HTTPStatus.SERVICE_UNAVAILABLE, http.HTTPStatus.TOO_MANY_REQUESTS):
        headers["Retry-After"] = str(math.ceil(getattr(error, "retry_after_s", None) or RETRY_AFTER_S))
    if row.status == http.HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if not row.again:
        headers |= DO_NOT_RETRY
    return JSONResponse(error_object(error), row.status, headers)


def _methods(app: FastAPI, scope: Scope) -> list[str]:
    """What may be done at a path: the framework names the methods of its first route alone."""
    return [
        method
        for method in ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in app.router.routes)
    ]


def install(app: FastAPI) -> None:
    """Answer with TABLE, and in the same shape for unknown routes and our own faults."""

    async def known(_: Request, error: Exception) -> JSONResponse:
        if isinstance(error, StoreUnavailable | FileStoreUnavailable | ObjectMissing):
            log.warning("%s", error)
        return respond(error)

    async def gone(_: Request, __: Exception) -> JSONResponse:
        """The server has logged it; nobody reads this answer, which counts it in the figures."""
        return respond(ClientGone("the connection was closed before the end of the body"))

    async def by_framework(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        code = http.HTTPStatus(error.status_code).name.lower()
        row = Row(error.status_code, INVALID if error.status_code < 500 else SERVER, code)
        headers = dict(error.headers or {})
        if row.status == http.HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = ", ".join(_methods(app, request.scope))
        return JSONResponse(body(str(error.detail), row), row.status, headers)

    async def by_signature(_: Request, error: Exception) -> JSONResponse:
        """Of a route that leaves its checks to FastAPI."""
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"][1:])
        row = Row(http.HTTPStatus.UNPROCESSABLE_ENTITY, INVALID, INVALID_VALUE)
        message = f"{path or 'the body'}: {first['msg'][:1].lower()}{first['msg'][1:]}"
        return JSONResponse(body(message, row, param=path or None), row.status)

    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        # It comes from outside all middleware.
        return JSONResponse(error_object(error), http.HTTPStatus.INTERNAL_SERVER_ERROR, API_HEADERS)

    for kind in TABLE:
        app.add_exception_handler(kind, known)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(HTTPException, by_framework)
    app.add_exception_handler(RequestValidationError, by_signature)
    app.add_exception_handler(Exception, unexpected)
