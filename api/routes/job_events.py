"""`GET /v1/jobs/{id}/events`: streams a job as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.http.error_responses import error_object
from api.http.errors import BadKey
from api.http.sse import EventStream, encoded
from api.requests.caller import caller_of
from api.requests.ids import JobId
from api.requests.open_requests import OpenKey
from api.requests.parsing import seen_by
from api.requests.schemas import ErrorBody
from api.requests.threads import run_in_threadpool
from api.service.dependencies import Gateway, GatewayDep
from api.service.job_stream import Text, follow
from tasks.base.errors import JobNotFound
from tasks.records.job import Job

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.get(
    "/{job_id}/events",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {}}}, 404: {"model": ErrorBody}},
)
async def job_events(job_id: JobId, request: Request, gateway: GatewayDep) -> EventStream:
    """Server-sent events of one job.

    `status` with `{"id", "status", "attempts"}` first and at each new status or attempt; `text` with
    `{"text", "logprobs"?, "drafts"?}`, whose texts joined are the result's text; at the end `done` with the
    record, which alone has `token_ids`, or `error` if the API key is revoked. `drafts` are the parts of this
    text that come from draft tokens: `start` and `end` (Unicode characters) and `source`.
    For a job that is already running, the text so far follows after its worker's next heartbeat.
    """
    job = await run_in_threadpool(_watched, gateway, job_id, seen_by(request))
    return EventStream(_events(gateway, job, caller_of(request).key))


def _watched(gateway: Gateway, job_id: str, owner: str | None) -> Job:
    job = gateway.store.get(job_id, owner)
    return gateway.store.watch(job, gateway.job_events.id, streaming=True)


async def _events(gateway: Gateway, job: Job, key: OpenKey) -> AsyncIterator[bytes]:
    yield _status(job)
    sent = (job.status, job.attempts)
    try:
        async for update in follow(gateway, job, key):
            if isinstance(update, Text):
                logprobs = {"logprobs": update.logprobs} if update.logprobs else {}
                drafts = {"drafts": update.drafts_json()} if update.drafts else {}
                yield encoded({"text": update.text, **logprobs, **drafts}, "text")
                continue
            job = update
            if (job.status, job.attempts) != sent:
                sent = (job.status, job.attempts)
                yield _status(job)
    except JobNotFound:  # deleted in the meantime
        pass
    except BadKey as error:
        yield encoded(error_object(error), "error")
        return
    yield encoded(job.to_json(), "done")


def _status(job: Job) -> bytes:
    return encoded({"id": job.id, "status": job.status.value, "attempts": job.attempts}, "status")
