"""The job endpoints."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from api.http.errors import BadRequest
from api.requests.caller import caller_of
from api.requests.ids import JobId
from api.requests.parsing import (
    idempotency_key,
    json_body,
    member,
    owner_of,
    page_query,
    seen_by,
    unknown_after,
    wait_s,
)
from api.requests.schemas import (
    IDEMPOTENCY_KEY,
    PAGE_PARAMETERS,
    PREFER,
    ErrorBody,
    JobList,
    JobRecord,
    page,
    query,
)
from api.requests.threads import run_in_threadpool
from api.service.dependencies import GatewayDep
from api.service.submission import submit
from tasks.base.errors import JobNotFound
from tasks.records.job import Status
from tasks.schema.job_request import MAX_METADATA, JobRequest

_ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorBody} for code in (400, 404, 409, 413, 415, 503)
}

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses=_ERRORS)


@router.post(
    "",
    status_code=202,
    responses={200: {"model": JobRecord}, 202: {"model": JobRecord}},
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/JobRequest"}}},
        },
        "parameters": [PREFER, IDEMPOTENCY_KEY],
    },
)
async def create_job(request: Request, gateway: GatewayDep) -> JSONResponse:
    """Queue a prompt: 202 with the record, or 200 if the job ends within `Prefer: wait=N` seconds."""
    wait = wait_s(request)
    key = idempotency_key(request)
    body = await json_body(request, JobRequest)
    job = await run_in_threadpool(submit, gateway, body, owner_of(request), key, awaited=bool(wait))
    if wait and not job.terminal:
        job = await caller_of(request).key.unless_revoked(gateway.job_events.wait(job, wait))
    headers = {"Location": f"/v1/jobs/{job.id}"}
    if wait:
        headers["Preference-Applied"] = f"wait={wait}"
    return JSONResponse(job.to_json(), 200 if job.terminal else 202, headers)


_LIST = {
    "parameters": [
        *PAGE_PARAMETERS,
        query("status", {"type": "string", "enum": list(Status)}),
        {
            **query(
                "metadata",
                {
                    "type": "object",
                    "propertyNames": {"minLength": 1},
                    "additionalProperties": {"type": "string"},
                },
            ),
            "style": "deepObject",
            "explode": True,
        },
    ]
}


@router.get("", responses={200: {"model": JobList}}, openapi_extra=_LIST)
async def list_jobs(request: Request, gateway: GatewayDep) -> JSONResponse:
    """Jobs, newest first; ?status=, ?limit=1..100, ?after=ID and any number of ?metadata[key]=value.

    A page may have fewer than `limit` jobs, or none, if the records are large or few match the filters.
    `has_more` says whether there may be more; they follow after `last_id`."""
    status: Status | None = None
    metadata: dict[str, str] = {}
    limit, after, filters = page_query(request, r"status|metadata\[(?s:.+)\]")
    for name, value in filters:
        if name == "status":
            status = member(Status, "status", value)
        else:
            metadata[name.removeprefix("metadata[").removesuffix("]")] = value
    if len(metadata) > MAX_METADATA:
        raise BadRequest(
            f"metadata: must have at most {MAX_METADATA} filters, as many as a job has entries",
            param="metadata",
        )
    try:
        owner = seen_by(request)
        found = await run_in_threadpool(gateway.store.page, limit, status, after, metadata, owner)
    except JobNotFound as error:
        raise unknown_after(error) from None
    return page([job.to_json() for job in found.jobs], found.has_more, found.last_id)


@router.get("/{job_id}", responses={200: {"model": JobRecord}}, openapi_extra={"parameters": [PREFER]})
async def get_job(job_id: JobId, request: Request, gateway: GatewayDep) -> JSONResponse:
    """One job; with `Prefer: wait=N` the response is sent when it has ended, or after N seconds."""
    wait = wait_s(request)
    job = await run_in_threadpool(gateway.store.get, job_id, seen_by(request))
    if wait and not job.terminal:
        job = await caller_of(request).key.unless_revoked(gateway.job_events.wait(job, wait))
    return JSONResponse(job.to_json())


@router.post("/{job_id}/cancel", responses={200: {"model": JobRecord}})
async def cancel_job(job_id: JobId, request: Request, gateway: GatewayDep) -> JSONResponse:
    """Cancel a job: a queued one immediately, a running one after its worker's next heartbeat, within about
    a second. A job that has ended is not changed."""
    job = await run_in_threadpool(gateway.store.cancel, job_id, seen_by(request))
    return JSONResponse(job.to_json())


@router.delete("/{job_id}")
async def delete_job(job_id: JobId, request: Request, gateway: GatewayDep) -> JSONResponse:
    """Delete the record of a job that has ended."""
    await run_in_threadpool(gateway.store.delete, job_id, seen_by(request))
    return JSONResponse({"id": job_id, "object": "job", "deleted": True})
