"""The job endpoints."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from api.errors import BadRequest, UnknownModel, UnsupportedMedia
from api.gateway import WORKERS_AGE_S, Gateway, GatewayDep
from api.schemas import ErrorBody, JobList, JobRecord, JobRequest, parse
from tasks.errors import JobNotFound, PublishFailed
from tasks.job import Job, NewJob, Status, random_seed

log = logging.getLogger(__name__)

DEFAULT_PAGE = 20
MAX_PAGE = 100
MAX_IDEMPOTENCY_KEY = 255  # characters
_METADATA = re.compile(r"^metadata\[(.+)\]$")
_WAIT = re.compile(r"^wait\s*=\s*(.*)$", re.IGNORECASE)
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
        "parameters": [
            {"name": "Prefer", "in": "header", "schema": {"type": "string"}, "example": "wait=10"},
            {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string"}},
        ],
    },
)
async def create_job(request: Request, gateway: GatewayDep) -> JSONResponse:
    """Queue a prompt: 202 with the record, or 200 when it has ended within `Prefer: wait=N` seconds."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedMedia("the body must be sent as Content-Type: application/json")
    wait_s = _wait_s(request, gateway)
    key = _idempotency_key(request)
    body = parse(await request.body())
    job = await run_in_threadpool(_submit, gateway, body, key)
    if wait_s and not job.terminal:
        job = await gateway.waiter.wait(job, wait_s)
    headers = {"Location": f"/v1/jobs/{job.id}"}
    if wait_s:
        headers["Preference-Applied"] = f"wait={wait_s}"
    return JSONResponse(job.to_json(), 200 if job.terminal else 202, headers)


@router.get("", responses={200: {"model": JobList}})
async def list_jobs(request: Request, gateway: GatewayDep) -> JSONResponse:
    """Jobs, newest first; ?status=, ?limit=1..100, ?after=ID and any number of ?metadata[key]=value."""
    status: Status | None = None
    after: str | None = None
    limit = DEFAULT_PAGE
    metadata: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name == "status":
            status = _status(value)
        elif name == "limit":
            limit = _number(value, 1, MAX_PAGE, "limit")
        elif name == "after":
            after = value
        elif match := _METADATA.match(name):
            metadata[match[1]] = value
        else:
            raise BadRequest(f"{name}: there is no such query parameter", code="unknown_field", param=name)
    try:
        page = await run_in_threadpool(gateway.store.page, limit, status, after, metadata)
    except JobNotFound as error:
        raise BadRequest(f"after: {error}", param="after") from None
    data = [job.to_json() for job in page.jobs]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return JSONResponse(
        {"object": "list", "data": data, "has_more": page.has_more, "first_id": first, "last_id": last}
    )


@router.get("/{job_id}", responses={200: {"model": JobRecord}})
async def get_job(job_id: str, request: Request, gateway: GatewayDep) -> JSONResponse:
    """One job; with `Prefer: wait=N` the answer comes when it has ended, or after N seconds."""
    wait_s = _wait_s(request, gateway)
    job = await run_in_threadpool(gateway.store.get, job_id)
    if wait_s and not job.terminal:
        job = await gateway.waiter.wait(job, wait_s)
    return JSONResponse(job.to_json())


@router.post("/{job_id}/cancel", responses={200: {"model": JobRecord}})
async def cancel_job(job_id: str, gateway: GatewayDep) -> JSONResponse:
    """A queued job is cancelled at once, a running one within two steps; an ended one stays as it is."""
    job = await run_in_threadpool(gateway.store.cancel, job_id)
    return JSONResponse(job.to_json())


@router.delete("/{job_id}")
async def delete_job(job_id: str, gateway: GatewayDep) -> JSONResponse:
    """Drop the record of a job that has ended."""
    await run_in_threadpool(gateway.store.delete, job_id)
    return JSONResponse({"id": job_id, "object": "job", "deleted": True})


def _submit(gateway: Gateway, body: JobRequest, key: str | None) -> Job:
    """Store the record, then send its message: from the first on, the job is accepted."""
    _check_against_workers(gateway, body)
    sent = body.sent()
    body_hash = hashlib.sha256(json.dumps(sent, sort_keys=True).encode()).hexdigest()
    sent.setdefault("max_tokens", gateway.settings.default_max_tokens)
    sent.setdefault("seed", random_seed())
    new = NewJob(
        request=sent,
        priority=body.priority,
        model=body.model,
        deadline=body.deadline,
        metadata=body.metadata,
        idempotency_key=key,
        body_hash=body_hash,
    )
    job, created = gateway.store.create(new)
    if created:
        try:
            gateway.publisher.publish_job(job)
        except PublishFailed as error:
            log.warning("%s; the reconciler will send it", error)
    return job


def _check_against_workers(gateway: Gateway, body: JobRequest) -> None:
    """Refuse what no live worker can run. With none alive the job waits for one."""
    if body.model is None and body.max_tokens is None:
        return
    workers = gateway.workers(WORKERS_AGE_S)
    able = [worker for worker in workers if body.model in (None, worker.model)]
    if workers and not able:
        served = ", ".join(sorted({worker.model for worker in workers}))
        raise UnknownModel(f"model: no live worker serves {body.model!r}; served: {served}")
    longest = max((worker.context_length for worker in able), default=None)
    if longest is not None and body.max_tokens is not None and body.max_tokens > longest:
        message = f"max_tokens: {body.max_tokens} is over the context of {longest} tokens"
        raise BadRequest(message, param="max_tokens")


def _wait_s(request: Request, gateway: Gateway) -> int:
    """Seconds of `Prefer: wait=N`, 0 without it; other preferences are ignored, as RFC 7240 says."""
    for preference in request.headers.get("prefer", "").split(","):
        if match := _WAIT.match(preference.strip()):
            return _number(match[1], 0, gateway.settings.max_wait_s, "Prefer: wait", "Prefer")
    return 0


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= MAX_IDEMPOTENCY_KEY:
        message = f"Idempotency-Key: must have 1 to {MAX_IDEMPOTENCY_KEY} characters"
        raise BadRequest(message, param="Idempotency-Key")
    return key


def _status(value: str) -> Status:
    try:
        return Status(value)
    except ValueError:
        known = ", ".join(Status)
        raise BadRequest(f"status: must be one of {known}", param="status") from None


def _number(value: str, least: int, most: int, name: str, param: str | None = None) -> int:
    if re.fullmatch(r"[0-9]{1,9}", value) and least <= int(value) <= most:
        return int(value)
    raise BadRequest(f"{name}: must be a whole number from {least} to {most}", param=param or name)
