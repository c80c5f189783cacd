"""The file endpoints, as those of the OpenAI API."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from api.content import ContentResponse
from api.errors import BadRequest
from api.gateway import GatewayDep
from api.inputs import DEFAULT_PAGE, MAX_PAGE, idempotency_key, whole_number
from api.ranges import byte_range
from api.schemas import ErrorBody
from api.uploads import ANCHOR, SECONDS, receive_file
from tasks.errors import FileNotFound
from tasks.file_records import Purpose

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
                        SECONDS: {"type": "integer"},
                    },
                }
            }
        },
    },
    "parameters": [{"name": "Idempotency-Key", "in": "header", "schema": {"type": "string"}}],
}
_CONTENT: dict[int | str, dict[str, Any]] = {
    code: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
    for code in (200, 206)
}

router = APIRouter(prefix=PATH, tags=["files"], responses=_ERRORS)


class FileObject(BaseModel):
    """A file. Times are whole Unix seconds; expires_at null is never."""

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
    """Upload a file of prompts, which is checked only when a batch is made of it.

    It expires after 30 days, or after `expires_after[seconds]`. With an `Idempotency-Key` the same form gives
    the same file for a day.
    """
    key = idempotency_key(request)
    return JSONResponse((await receive_file(request, gateway, key)).to_json())


@router.get("", responses={200: {"model": FileList}})
async def list_files(request: Request, gateway: GatewayDep) -> JSONResponse:
    """Files, newest first; ?purpose=, ?limit=1..100, ?after=ID, ?order=asc|desc."""
    purpose: Purpose | None = None
    after: str | None = None
    limit, order = DEFAULT_PAGE, "desc"
    for name, value in request.query_params.multi_items():
        if name == "purpose":
            purpose = _purpose(value)
        elif name == "limit":
            limit = whole_number(value, 1, MAX_PAGE, "limit")
        elif name == "after":
            after = value
        elif name == "order" and value in ("asc", "desc"):
            order = value
        elif name == "order":
            raise BadRequest("order: must be one of asc, desc", param="order")
        else:
            raise BadRequest(f"{name}: there is no such query parameter", code="unknown_field", param=name)
    records = gateway.files.records
    try:
        page = await run_in_threadpool(records.page, limit, after, purpose, order == "asc")
    except FileNotFound as error:
        raise BadRequest(f"after: {error}", param="after") from None
    data = [file.to_json() for file in page.files]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return JSONResponse(
        {"object": "list", "data": data, "has_more": page.has_more, "first_id": first, "last_id": last}
    )


@router.get("/{file_id}", responses={200: {"model": FileObject}})
async def get_file(file_id: str, gateway: GatewayDep) -> JSONResponse:
    """One file."""
    return JSONResponse((await run_in_threadpool(gateway.files.records.get, file_id)).to_json())


@router.get("/{file_id}/content", response_class=Response, responses=_CONTENT)
async def get_content(file_id: str, request: Request, gateway: GatewayDep) -> ContentResponse:
    """The bytes, streamed; with `Range: bytes=a-b`, `a-` or `-n` those alone."""
    file = await run_in_threadpool(gateway.files.records.get, file_id)
    # Nothing here has a tag or a date that If-Range could match.
    header = None if "if-range" in request.headers else request.headers.get("range")
    span = byte_range(header, file.bytes)
    content = await gateway.in_file_thread(partial(gateway.files.objects.open, file.object_name))
    return ContentResponse(gateway, content, file.bytes, file.filename, span)


@router.delete("/{file_id}")
async def delete_file(file_id: str, gateway: GatewayDep) -> JSONResponse:
    """Drop a file; refused while a batch that has not ended reads it."""
    await gateway.in_file_thread(partial(gateway.files.delete, file_id))
    return JSONResponse({"id": file_id, "object": "file", "deleted": True})


def _purpose(value: str) -> Purpose:
    try:
        return Purpose(value)
    except ValueError:
        raise BadRequest(f"purpose: must be one of {', '.join(Purpose)}", param="purpose") from None
