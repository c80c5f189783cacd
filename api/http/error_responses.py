"""Exception handlers, which answer every failed request in the error format of api.http.errors."""

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
from api.http.headers import API_HEADERS, REQUEST_ID
from tasks.base.errors import FileStoreFull, FileStoreUnavailable, ObjectMissing, StoreUnavailable
from tasks.schema.job_request import INVALID_VALUE

RETRY_AFTER_S = 2  # default for 429 and 503: a restarting Redis is usually back by then
DO_NOT_RETRY = {"x-should-retry": "false"}  # without it, OpenAI's client retries 409 and 5xx

log = logging.getLogger(__name__)


# Replace the messages of these errors, which name Redis keys, folders and hosts and belong in the log.
PUBLIC_MESSAGES: dict[type[Exception], str] = {
    StoreUnavailable: "Redis is unavailable, or failed to execute a command; try again later, "
    "or ask who runs it for `medusaq doctor`",
    FileStoreUnavailable: "the file store is unavailable, or failed to execute an operation; try again later",
    FileStoreFull: "the file store is full: delete files that are no longer needed, or ask for more room",
}


def error_object(error: Exception) -> dict[str, object]:
    """The response body for an exception. One that is not in TABLE is reported as an internal error."""
    row = TABLE.get(type(error))
    if row is None:
        return body("internal error; see the gateway's log for details", Row(500, SERVER, "internal_error"))
    message = PUBLIC_MESSAGES.get(type(error)) or str(error)
    return body(message, row, getattr(error, "code", None), getattr(error, "param", None))


def respond(error: Exception) -> JSONResponse:
    """The response to an exception of TABLE."""
    row = TABLE[type(error)]
    headers = dict(getattr(error, "headers", None) or {})
    if row.status in (http.HTTPStatus.SERVICE_UNAVAILABLE, http.HTTPStatus.TOO_MANY_REQUESTS):
        headers["Retry-After"] = str(math.ceil(getattr(error, "retry_after_s", None) or RETRY_AFTER_S))
    if row.status == http.HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if not row.retryable:
        headers |= DO_NOT_RETRY
    return JSONResponse(error_object(error), row.status, headers)


def _methods(app: FastAPI, scope: Scope) -> list[str]:
    """The methods allowed at a path. The framework only lists those of the first matching route."""
    return [
        method
        for method in ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in app.router.routes)
    ]


def install(app: FastAPI) -> None:
    """Register the handlers for TABLE, unknown routes, invalid parameters and internal errors."""

    async def table_error(_: Request, error: Exception) -> JSONResponse:
        if isinstance(error, StoreUnavailable | FileStoreUnavailable | ObjectMissing):
            log.warning("%s", error)
        return respond(error)

    async def client_gone(_: Request, __: Exception) -> JSONResponse:
        """Answer although nobody reads it, so that the request is counted in the metrics."""
        return respond(ClientGone("the connection was closed before the end of the body"))

    async def framework_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        code = http.HTTPStatus(error.status_code).name.lower()
        row = Row(error.status_code, INVALID if error.status_code < 500 else SERVER, code)
        headers = dict(error.headers or {})
        if row.status == http.HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = ", ".join(_methods(app, request.scope))
        return JSONResponse(body(str(error.detail), row), row.status, headers)

    async def validation_error(_: Request, error: Exception) -> JSONResponse:
        """Convert the validation error of a route that FastAPI checks."""
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"][1:])
        row = Row(http.HTTPStatus.UNPROCESSABLE_ENTITY, INVALID, INVALID_VALUE)
        message = f"{path or 'the body'}: {first['msg'][:1].lower()}{first['msg'][1:]}"
        return JSONResponse(body(message, row, param=path or None), row.status)

    async def internal_error(request: Request, error: Exception) -> JSONResponse:
        # Starlette sends this response outside all middleware, so it lacks their headers.
        request_id = getattr(request.state, REQUEST_ID)
        log.error("request %s failed by an internal error", request_id)
        headers = {**API_HEADERS, REQUEST_ID: request_id}
        return JSONResponse(error_object(error), http.HTTPStatus.INTERNAL_SERVER_ERROR, headers)

    for kind in TABLE:
        app.add_exception_handler(kind, table_error)
    app.add_exception_handler(ClientDisconnect, client_gone)
    app.add_exception_handler(HTTPException, framework_error)
    app.add_exception_handler(RequestValidationError, validation_error)
    app.add_exception_handler(Exception, internal_error)
