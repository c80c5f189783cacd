"""One prompt with Medusa heads and without, answered in one go: the /generate endpoints and /compare.

Each is made of interactive jobs, which show up in /v1/jobs too.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from api.http.errors import BadRequest, NotInTime
from api.requests.caller import caller_of
from api.requests.parsing import MOST_WAIT_S, json_body, owner_of, wait_s
from api.requests.schemas import ErrorBody
from api.requests.threads import run_in_threadpool
from api.service.dependencies import Gateway, GatewayDep
from api.service.job_errors import failure
from api.service.submission import submit
from tasks.records.job import Decoding, Job
from tasks.schema.job_request import MAX_MODEL, MAX_TOKENS, JobRequest
from tasks.schema.messages import Strict

_ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorBody} for code in (400, 409, 413, 415, 500, 503, 504)
}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/GenerateRequest"}}},
    },
    "parameters": [
        {
            "name": "Prefer",
            "in": "header",
            "schema": {"type": "string"},
            "example": "wait=30",
            "description": "Seconds until the answer is given up with 504; the gateway's longest without it.",
        }
    ],
}

router = APIRouter(tags=["normal and medusa"], responses=_ERRORS)


class GenerateRequest(Strict):
    """A prompt: one user turn through the model's chat template, decoded greedily."""

    prompt: Annotated[str, Field(min_length=1)]
    model: Annotated[str, Field(min_length=1, max_length=MAX_MODEL)] | None = Field(
        None, description="Which of the models answers, where workers serve several."
    )
    max_length: int | None = Field(
        None,
        ge=1,
        le=MAX_TOKENS,
        description="Most tokens of the answer; 256 unless the gateway is set otherwise.",
    )


class Generated(BaseModel):
    """An answer. Times leave the queue out.

    speedup_factor is measured against /generate/normal on the same prompt, so only /compare knows it for
    medusa; acceptance_rate is that of draft tokens, null where nothing was drafted.
    """

    text: str
    generation_time: float = Field(description="Seconds, those for the prompt included.")
    tokens_generated: int
    tokens_per_second: float
    speedup_factor: float | None
    acceptance_rate: float | None


class Comparison(BaseModel):
    """Both answers. speedup is medusa's tokens_per_second by normal's."""

    normal: Generated
    medusa: Generated
    speedup: float | None


@router.post("/generate/normal", openapi_extra=_BODY)
async def generate_normal(request: Request, gateway: GatewayDep) -> Generated:
    """Plain decoding, one token a step."""
    asked, give_up = await _asked(request)
    return _generated(await _run(request, gateway, asked, Decoding.NORMAL, give_up), speedup=1.0)


@router.post("/generate/medusa", openapi_extra=_BODY)
async def generate_medusa(request: Request, gateway: GatewayDep) -> Generated:
    """Decoding with Medusa heads at every step, for the text of /generate/normal.

    Refused with 400 and code `no_heads` where no worker has heads for its model.
    """
    asked, give_up = await _asked(request)
    return _generated(await _run(request, gateway, asked, Decoding.MEDUSA, give_up), speedup=None)


@router.post("/compare", openapi_extra=_BODY)
async def compare(request: Request, gateway: GatewayDep) -> Comparison:
    """The same prompt both ways, one after the other so that they do not share a batch.

    Before them the prompt is computed once, so that both find it in the cache and only decoding is compared.
    The texts are equal, since a draft token stands only where plain decoding would have chosen it; outside
    batch-invariant mode, rounding may tip a near-tie between two tokens.
    Refused with 400 and code `no_heads` where no worker has heads for its model.
    """
    asked, give_up = await _asked(request)
    await _run(request, gateway, asked.model_copy(update={"max_length": 1}), Decoding.MEDUSA, give_up)
    normal = _generated(await _run(request, gateway, asked, Decoding.NORMAL, give_up), speedup=1.0)
    medusa = _generated(await _run(request, gateway, asked, Decoding.MEDUSA, give_up), speedup=None)
    if normal.tokens_per_second > 0:
        medusa.speedup_factor = medusa.tokens_per_second / normal.tokens_per_second
    return Comparison(normal=normal, medusa=medusa, speedup=medusa.speedup_factor)


async def _asked(request: Request) -> tuple[GenerateRequest, float]:
    """The request, and when to give it up on the monotonic clock."""
    wait = wait_s(request)
    asked = await json_body(request, GenerateRequest)
    return asked, time.monotonic() + (MOST_WAIT_S if wait is None else wait)


async def _run(
    request: Request, gateway: Gateway, asked: GenerateRequest, decoding: Decoding, give_up: float
) -> Job:
    """The job that has succeeded; raises ApiError for any other."""
    fields = {
        "prompt": asked.prompt,
        "model": asked.model,
        "max_tokens": asked.max_length,
        "seed": 0,
        "decoding": decoding,
    }
    body = JobRequest.model_validate(fields)
    try:
        job = await run_in_threadpool(submit, gateway, body, owner_of(request))
    except BadRequest as error:
        raise _refusal(str(error), error.code, error.param) from None
    left_s = max(0.0, give_up - time.monotonic())
    job = await caller_of(request).key.unless_revoked(gateway.waiter.wait(job, left_s))
    if not job.terminal:
        raise NotInTime(f"{job.id} is still {job.status} and goes on: GET /v1/jobs/{job.id} has its end")
    reason = failure(job)
    if isinstance(reason, BadRequest):
        raise _refusal(str(reason), reason.code, reason.param)
    if reason is not None:
        raise reason
    return job


def _refusal(message: str, code: str | None, param: str | None) -> BadRequest:
    """A job's refusal, with the field as it is called here."""
    if param == "max_tokens":
        message, param = message.replace(param, "max_length"), "max_length"
    return BadRequest(message, code=code, param=param)


def _generated(job: Job, speedup: float | None) -> Generated:
    assert job.result is not None, "it has succeeded"
    timing, speculation = job.result["timing"], job.result.get("speculation") or {}
    sources = speculation.get("sources", {}).values()
    verified = sum(source["verified"] for source in sources)
    return Generated(
        text=job.result["text"],
        generation_time=timing["total_s"] - timing["queue_s"],
        tokens_generated=job.result["usage"]["completion_tokens"],
        tokens_per_second=timing["tokens_per_s"],
        speedup_factor=speedup,
        acceptance_rate=sum(source["accepted"] for source in sources) / verified if verified else None,
    )
