"""Every way a request can fail: one table from exception to status, type and code.

Without the web framework, so that a command which checks requests need not load it.

ApiError
├── NoKey                  no API key came, and one is needed
├── BadKey                 the API key is unknown, or was revoked
├── ForeignPage            a browser was sent here by another site
├── TooManyRequests        of one key in this minute, or open at once
├── BadRequest             a field, header or query parameter is wrong; `param` names it
├── UnknownModel           models are served or known, and this is none of them
├── BodyTooLarge           the body is over max_body_bytes, or a file over max_file_bytes
├── UnsupportedMedia       the body is not declared as JSON, or an upload not as a form
├── MalformedRequest       what came is not HTTP
├── HeadersTooLarge        the request line and headers, in bytes or number
├── TargetTooLong          the path and query
├── RequestTimeout         headers or a body that come too slowly
├── TooManyConnections     of all clients, or of one address
├── RangeNotSatisfiable    a range that begins behind the end of the file
├── NoWorker               no worker of the model is alive, and somebody waits for the answer
├── NotInTime              the job behind the answer did not end in time
├── JobCancelled           somebody cancelled the job behind the answer
├── JobUnsuccessful        the job behind the answer failed
├── BatchNotEnded          only a batch that has ended can be retried or deleted
└── ClientGone             the connection was closed before the answer

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
    ObjectMissing,
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
CLIENT_CLOSED = 499  # nginx's status of a request that nobody waits for any more


class ApiError(Exception):
    """A request the gateway refuses; code, param and headers of the answer may be set per case."""

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
    """No API key came, and one is needed."""


class BadKey(ApiError):
    """The API key is unknown, or was revoked."""


class ForeignPage(ApiError):
    """A browser was sent here by another site."""


class TooManyRequests(ApiError):
    """One key has sent more in this minute than it may, or has too many requests open."""


class BadRequest(ApiError):
    """A field, header or query parameter is wrong."""


class UnknownModel(ApiError):
    """Models are served, and neither they nor any that were served before have this name."""


class BodyTooLarge(ApiError):
    """The body is over the limit."""


class UnsupportedMedia(ApiError):
    """The body is not declared as JSON: a browser's form could send it from any page.

    Or, for an upload, not as a form.
    """


class MalformedRequest(ApiError):
    """What came is not HTTP."""


class HeadersTooLarge(ApiError):
    """The request line and the headers are too many bytes, or the headers too many."""


class TargetTooLong(ApiError):
    """The path and query are too long."""


class RequestTimeout(ApiError):
    """Headers or a body that come too slowly."""


class TooManyConnections(ApiError):
    """No connection is left, or none for this address."""


class RangeNotSatisfiable(ApiError):
    """A range that begins behind the end of the file."""


class NoWorker(ApiError):
    """No worker of the model is alive, and the client waits for its answer."""


class NotInTime(ApiError):
    """The job behind the answer has not ended in time."""


class JobCancelled(ApiError):
    """Somebody cancelled the job behind the answer."""


class JobUnsuccessful(ApiError):
    """The job behind the answer failed, through no fault of the request."""


class BatchNotEnded(ApiError):
    """Only a batch that has ended can be retried or deleted."""


class ClientGone(ApiError):
    """The connection was closed before there was an answer: nobody reads this one."""


class Row(NamedTuple):
    """again: False where the same request would only do the same once more, so that nobody repeats it."""

    status: int
    type: str
    code: str
    param: str | None = None
    again: bool = True


TABLE: dict[type[Exception], Row] = {
    NoKey: Row(401, AUTHENTICATION, "missing_api_key", "Authorization"),
    BadKey: Row(401, AUTHENTICATION, "invalid_api_key", "Authorization"),
    ForeignPage: Row(403, PERMISSION, "cross_site"),
    TooManyRequests: Row(429, "requests", "rate_limit_exceeded"),
    StorageLimit: Row(429, "insufficient_quota", "storage_limit", again=False),
    FilesLimit: Row(413, INVALID, "file_storage_limit"),
    LimitReached: Row(429, "requests", "queue_full"),
    BudgetSpent: Row(429, "insufficient_quota", "insufficient_quota", again=False),
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
    NotInTime: Row(504, SERVER, "not_in_time", again=False),
    JobCancelled: Row(409, INVALID, "job_cancelled", again=False),
    JobUnsuccessful: Row(500, SERVER, "job_failed", again=False),
    ClientGone: Row(CLIENT_CLOSED, INVALID, "connection_closed"),
    JobNotFound: Row(404, INVALID, "job_not_found"),
    BatchNotFound: Row(404, INVALID, "batch_not_found"),
    BatchNotEnded: Row(409, INVALID, "batch_not_ended"),
    DeliveryNotFound: Row(404, INVALID, "delivery_not_found"),
    SecretFixed: Row(409, INVALID, "secret_fixed", again=False),
    SecretChanging: Row(409, INVALID, "secret_changing", again=False),
    JobNotFinished: Row(409, INVALID, "job_not_finished"),
    IdempotencyConflict: Row(409, INVALID, "idempotency_conflict", "Idempotency-Key", again=False),
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
