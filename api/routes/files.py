"""The file endpoints, in OpenAI's format."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from api.http.byte_range import byte_range
from api.http.errors import BadRequest
from api.requests.caller import caller_of
from api.requests.ids import FileId
from api.requests.parsing import (
    MAX_EXPIRY_S,
    MIN_EXPIRY_S,
    idempotency_key,
    member,
    page_query,
    seen_by,
    unknown_after,
)
from api.requests.schemas import IDEMPOTENCY_KEY, PAGE_PARAMETERS, ErrorBody, page, query
from api.requests.threads import run_in_threadpool
from api.service.dependencies import GatewayDep
from api.service.file_response import ContentResponse, open_content
from api.service.uploads import ANCHOR, SECONDS, receive_file
from tasks.base.errors import FileNotFound
from tasks.files.records import Purpose

PATH = "/v1/files"
_ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorBody} for code in (400, 404, 408, 409, 413, 415, 416, 500, 503, 507)
}
_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "purpose": {"type": "string", "enum": [Purpose.BATCH.value]},
                        "file": {"type": "string", "format": "binary"},
                        ANCHOR: {"type": "string", "enum": ["created_at"]},
                        SECONDS: {"type": "integer", "minimum": MIN_EXPIRY_S, "maximum": MAX_EXPIRY_S},
                    },
                    "dependentRequired": {ANCHOR: [SECONDS], SECONDS: [ANCHOR]},
                    "additionalProperties": False,
                }
            }
        },
    },
    "parameters": [IDEMPOTENCY_KEY],
}
_CONTENT: dict[int | str, dict[str, Any]] = {
    code: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
    for code in (200, 206)
}

router = APIRouter(prefix=PATH, tags=["files"], responses=_ERRORS)


class FileObject(BaseModel):
    """A file. Times are whole Unix seconds; expires_at is null if the file does not expire."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: Purpose
    status: Literal["processed"]


class FileList(BaseModel):
    object: Literal["list"]
    data: list[FileObject]
    has_more: bool
    first_id: str | None
    last_id: str | None


@router.post("", responses={200: {"model": FileObject}}, openapi_extra=_FORM)
async def create_file(request: Request, gateway: GatewayDep) -> JSONResponse:
    """Upload a file of batch lines. They are validated when a batch is created from it.

    It expires after 30 days, or after `expires_after[seconds]`. With an `Idempotency-Key`, repeating the
    same form within a day returns the same file.
    """
    key = idempotency_key(request)
    return JSONResponse((await receive_file(request, gateway, key)).to_json())


_LIST = {
    "parameters": [
        *PAGE_PARAMETERS,
        query("purpose", {"type": "string", "enum": list(Purpose)}),
        query("order", {"type": "string", "enum": ["asc", "desc"], "default": "desc"}),
    ]
}


@router.get("", responses={200: {"model": FileList}}, openapi_extra=_LIST)
async def list_files(request: Request, gateway: GatewayDep) -> JSONResponse:
    """Files, newest first; ?purpose=, ?limit=1..100, ?after=ID, ?order=asc|desc."""
    purpose: Purpose | None = None
    order = "desc"
    limit, after, filters = page_query(request, "purpose|order")
    for name, value in filters:
        if name == "purpose":
            purpose = member(Purpose, "purpose", value)
        elif value not in ("asc", "desc"):
            raise BadRequest("order: must be one of asc, desc", param="order")
        else:
            order = value
    records = gateway.files.records
    try:
        owner = seen_by(request)
        found = await run_in_threadpool(records.page, limit, after, purpose, order == "asc", owner)
    except FileNotFound as error:
        raise unknown_after(error) from None
    return page([file.to_json() for file in found.files], found.has_more)


@router.get("/{file_id}", responses={200: {"model": FileObject}})
async def get_file(file_id: FileId, request: Request, gateway: GatewayDep) -> JSONResponse:
    """One file."""
    file = await run_in_threadpool(gateway.files.records.get, file_id, seen_by(request))
    return JSONResponse(file.to_json())


@router.get("/{file_id}/content", response_class=Response, responses=_CONTENT)
async def get_content(file_id: FileId, request: Request, gateway: GatewayDep) -> ContentResponse:
    """The content, streamed; `Range: bytes=a-b`, `a-` and `-n` are supported."""
    file = await run_in_threadpool(gateway.files.records.get, file_id, seen_by(request))
    # Responses have no ETag and no Last-Modified, so If-Range never matches.
    header = None if "if-range" in request.headers else request.headers.get("range")
    span = byte_range(header, file.bytes)
    return ContentResponse(gateway, await open_content(gateway, file), file, caller_of(request).key, span)


@router.delete("/{file_id}")
async def delete_file(file_id: FileId, request: Request, gateway: GatewayDep) -> JSONResponse:
    """Delete a file. Fails with 409 while an unfinished batch uses it."""
    await gateway.in_file_thread(partial(gateway.files.delete, file_id, seen_by(request)))
    return JSONResponse({"id": file_id, "object": "file", "deleted": True})
