"""`GET /v1/jobs/{id}/events`: a job as it happens, as server-sent events."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from api.following import Text, follow
from api.gateway import Gateway, GatewayDep
from api.inputs import seen_by
from api.schemas import ErrorBody
from api.sse import EventStream, encoded
from tasks.errors import JobNotFound
from tasks.job import Job

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.get(
    "/{job_id}/events",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {}}}, 404: {"model": ErrorBody}},
)
async def job_events(job_id: str, request: Request, gateway: GatewayDep) -> EventStream:
    """Server-sent events of one job.

    `status` with `{"id", "status", "attempts"}`, first of all and at each change; `text` with
    `{"text", "logprobs"?}`, which joined are the result's text; `done` with the record, last of all. The text
    of a job that runs already begins with what there is, after its worker's next heartbeat.
    """
    job = await run_in_threadpool(gateway.store.watch, job_id, seen_by(request))
    return EventStream(_events(gateway, job))


async def _events(gateway: Gateway, job: Job) -> AsyncIterator[bytes]:
    yield _status(job)
    shown = job.status
    with contextlib.suppress(JobNotFound):  # deleted just now
        async for news in follow(gateway, job):
            if isinstance(news, Text):
                logprobs = {"logprobs": news.logprobs} if news.logprobs else {}
                yield encoded({"text": news.text, **logprobs}, "text")
                continue
            job = news
            if job.status is not shown:
                shown = job.status
                yield _status(job)
    yield encoded(job.to_json(), "done")


def _status(job: Job) -> bytes:
    return encoded({"id": job.id, "status": job.status.value, "attempts": job.attempts}, "status")
