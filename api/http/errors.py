"""The errors of the API: one table from exception to status, type and code.

Does not import the web framework, so that commands which validate requests need not load it.

ApiError
├── NoKey                  the API key is missing
├── BadKey                 the API key is unknown or revoked
├── ForeignPage            cross-site request from a browser
├── TooManyRequests        a key's rate limit, or its limit of open requests, is reached
├── BadRequest             a field, header or query parameter is invalid; `param` names it
├── UnknownModel           no worker serves, or ever served, a model of this name
├── BodyTooLarge           the body is over max_body_bytes, or a file over max_file_bytes
├── UnsupportedMedia       the Content-Type is not JSON, or for uploads not a form
├── MalformedRequest       not valid HTTP
├── HeadersTooLarge        the request line and headers are too large, or the headers too many
├── TargetTooLong          the path and query are too long
├── RequestTimeout         headers or a body arrive too slowly
├── TooManyConnections     too many connections, in total or from one address
├── RangeNotSatisfiable    the byte range is outside the file
├── NoWorker               an online request, and no worker of the model is alive
├── NotInTime              the job of an online request did not end in time
├── JobCancelled           the job of an online request was cancelled
├── JobUnsuccessful        the job of an online request failed
├── BatchNotEnded          only a batch that has ended can be retried or deleted
├── NoOutputTable          the results of a batch cannot be written as a table
└── ClientGone             the client closed the connection before the response

The body is always {"error": {"message", "type", "param", "code"}}.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tasks.base.errors import (
    BatchNotFound,
    BudgetSpent,
    DeliveryNotFound,
    FileInUse,
    FileNotFound,
    FilesLimit,
    FileStoreFull,
    FileStoreUnavailable,
    IdempotencyConflict,
    InvalidRequest,
    JobNotFinished,
    JobNotFound,
    LimitReached,
    LineOfBatch,
    ObjectMissing,
    ResponseNotFound,
    SecretChanging,
    SecretFixed,
    StorageLimit,
    StoreUnavailable,
)
from tasks.schema.job_request import INVALID_VALUE

INVALID = "invalid_request_error"
AUTHENTICATION = "authentication_error"
PERMISSION = "permission_error"
SERVER = "server_error"
CLIENT_CLOSED = 499  # nginx's status for a client that closed the connection


class ApiError(Exception):
    """Base of the gateway's own errors. code and param override those of TABLE."""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.code = code
        self.param = param
        self.headers = headers


class NoKey(ApiError):
    """The request has no API key, and needs one."""


class BadKey(ApiError):
    """The API key is unknown, or was revoked."""


class ForeignPage(ApiError):
    """A browser sent the request for a page of another site."""


class TooManyRequests(ApiError):
    """A key's requests per minute, or its open requests, are at their limit."""


class BadRequest(ApiError):
    """A field, header or query parameter is invalid."""


class UnknownModel(ApiError):
    """No model of this name is served, or was served before."""


class BodyTooLarge(ApiError):
    """The body is over the limit."""


class UnsupportedMedia(ApiError):
    """The Content-Type is not application/json, or for an upload not multipart/form-data.

    Requiring JSON also keeps forms of other sites from sending requests through a browser.
    """


class MalformedRequest(ApiError):
    """The request is not valid HTTP."""


class HeadersTooLarge(ApiError):
    """The request line and headers are too large, or the headers too many."""


class TargetTooLong(ApiError):
    """The path and query are too long."""


class RequestTimeout(ApiError):
    """The headers or the body arrive too slowly."""


class TooManyConnections(ApiError):
    """The limit of connections is reached, in total or for one address."""


class RangeNotSatisfiable(ApiError):
    """The byte range is outside the file."""


class NoWorker(ApiError):
    """The client waits for its result, and no worker of the model is alive."""


class NotInTime(ApiError):
    """The job of an online request did not end in time."""


class JobCancelled(ApiError):
    """The job of an online request was cancelled."""


class JobUnsuccessful(ApiError):
    """The job of an online request failed, and the request was not at fault."""


class BatchNotEnded(ApiError):
    """Only a batch that has ended can be retried or deleted."""


class NoOutputTable(ApiError):
    """The results of a batch cannot be written as a table."""


class ClientGone(ApiError):
    """The client closed the connection before the response."""


class Row(NamedTuple):
    """retryable: False tells clients that repeating the request cannot help."""

    status: int
    type: str
    code: str
    param: str | None = None
    retryable: bool = True


TABLE: dict[type[Exception], Row] = {
    NoKey: Row(401, AUTHENTICATION, "missing_api_key", "Authorization"),
    BadKey: Row(401, AUTHENTICATION, "invalid_api_key", "Authorization"),
    ForeignPage: Row(403, PERMISSION, "cross_site"),
    TooManyRequests: Row(429, "requests", "rate_limit_exceeded"),
    StorageLimit: Row(429, "insufficient_quota", "storage_limit", retryable=False),
    FilesLimit: Row(413, INVALID, "file_storage_limit"),
    LimitReached: Row(429, "requests", "queue_full"),
    BudgetSpent: Row(429, "insufficient_quota", "insufficient_quota", retryable=False),
    BadRequest: Row(400, INVALID, INVALID_VALUE),
    InvalidRequest: Row(400, INVALID, INVALID_VALUE),
    UnknownModel: Row(404, INVALID, "model_not_found", "model"),
    BodyTooLarge: Row(413, INVALID, "body_too_large"),
    UnsupportedMedia: Row(415, INVALID, "unsupported_media_type", "Content-Type"),
    MalformedRequest: Row(400, INVALID, "malformed_request"),
    HeadersTooLarge: Row(431, INVALID, "headers_too_large"),
    TargetTooLong: Row(414, INVALID, "uri_too_long"),
    RequestTimeout: Row(408, INVALID, "request_timeout"),
    TooManyConnections: Row(503, SERVER, "too_many_connections"),
    RangeNotSatisfiable: Row(416, INVALID, "range_not_satisfiable", "Range"),
    NoWorker: Row(503, SERVER, "no_worker"),
    NotInTime: Row(504, SERVER, "not_in_time", retryable=False),
    JobCancelled: Row(409, INVALID, "job_cancelled", retryable=False),
    JobUnsuccessful: Row(500, SERVER, "job_failed", retryable=False),
    ClientGone: Row(CLIENT_CLOSED, INVALID, "connection_closed"),
    LineOfBatch: Row(404, INVALID, "line_of_batch"),
    JobNotFound: Row(404, INVALID, "job_not_found"),
    ResponseNotFound: Row(404, INVALID, "response_not_found"),
    BatchNotFound: Row(404, INVALID, "batch_not_found"),
    BatchNotEnded: Row(409, INVALID, "batch_not_ended"),
    NoOutputTable: Row(409, INVALID, "no_output_table", retryable=False),
    DeliveryNotFound: Row(404, INVALID, "delivery_not_found"),
    SecretFixed: Row(409, INVALID, "secret_fixed", retryable=False),
    SecretChanging: Row(409, INVALID, "secret_changing", retryable=False),
    JobNotFinished: Row(409, INVALID, "job_not_finished"),
    IdempotencyConflict: Row(409, INVALID, "idempotency_conflict", "Idempotency-Key", retryable=False),
    StoreUnavailable: Row(503, SERVER, "store_unavailable"),
    FileNotFound: Row(404, INVALID, "file_not_found"),
    FileInUse: Row(409, INVALID, "file_in_use"),
    ObjectMissing: Row(500, SERVER, "file_content_missing"),
    FileStoreUnavailable: Row(503, SERVER, "file_store_unavailable"),
    FileStoreFull: Row(507, SERVER, "storage_full"),
}


def body(message: str, row: Row, code: str | None = None, param: str | None = None) -> dict[str, object]:
    """The error object of a response."""
    error = {"message": message, "type": row.type, "param": param or row.param, "code": code or row.code}
    return {"error": error}
