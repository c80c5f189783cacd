"""/generate/normal, /generate/medusa and /compare: one prompt, decoded with and without draft heads.

They run interactive jobs, which are also listed in /v1/jobs.
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
            "description": f"Timeout in seconds, after which the response is 504. Default: {MOST_WAIT_S}.",
        }
    ],
}

router = APIRouter(tags=["normal and medusa"], responses=_ERRORS)


class GenerateRequest(Strict):
    """A prompt, which is sent as one user message through the chat template and decoded greedily."""

    prompt: Annotated[str, Field(min_length=1)]
    model: Annotated[str, Field(min_length=1, max_length=MAX_MODEL)] | None = Field(
        None, description="Name of the model, required if workers serve several."
    )
    max_length: int | None = Field(
        None,
        ge=1,
        le=MAX_TOKENS,
        description="Most tokens of the answer. Default: MEDUSAQ_DEFAULT_MAX_TOKENS (256).",
    )


class Generated(BaseModel):
    """An answer. Times exclude the queue.

    speedup_factor is relative to /generate/normal on the same prompt, so for medusa only /compare has it.
    acceptance_rate is that of draft tokens, null if there were none.
    """

    text: str
    generation_time: float = Field(description="Seconds, including the processing of the prompt.")
    tokens_generated: int
    tokens_per_second: float
    speedup_factor: float | None
    acceptance_rate: float | None


class Comparison(BaseModel):
    """Both answers. speedup is medusa's tokens_per_second divided by normal's."""

    normal: Generated
    medusa: Generated
    speedup: float | None


@router.post("/generate/normal", openapi_extra=_BODY)
async def generate_normal(request: Request, gateway: GatewayDep) -> Generated:
    """Plain decoding, one token per step."""
    params, give_up_at = await _read_request(request)
    return _generated(await _run(request, gateway, params, Decoding.NORMAL, give_up_at), speedup=1.0)


@router.post("/generate/medusa", openapi_extra=_BODY)
async def generate_medusa(request: Request, gateway: GatewayDep) -> Generated:
    """Decoding with draft heads at every step; the text is that of /generate/normal.

    Fails with 400 and code `no_heads` if no worker has heads for its model.
    """
    params, give_up_at = await _read_request(request)
    return _generated(await _run(request, gateway, params, Decoding.MEDUSA, give_up_at), speedup=None)


@router.post("/compare", openapi_extra=_BODY)
async def compare(request: Request, gateway: GatewayDep) -> Comparison:
    """Decode the same prompt both ways, one after the other so that they do not share a batch.

    The prompt is processed once before, so that both find it in the prefix cache and only decoding is
    compared. The texts are equal, since a draft token is accepted only if plain decoding would have chosen
    it; outside batch-invariant mode, rounding may decide a near-tie between two tokens differently.

    Fails with 400 and code `no_heads` if no worker has heads for its model.
    """
    params, give_up_at = await _read_request(request)
    await _run(request, gateway, params.model_copy(update={"max_length": 1}), Decoding.MEDUSA, give_up_at)
    normal = _generated(await _run(request, gateway, params, Decoding.NORMAL, give_up_at), speedup=1.0)
    medusa = _generated(await _run(request, gateway, params, Decoding.MEDUSA, give_up_at), speedup=None)
    if normal.tokens_per_second > 0:
        medusa.speedup_factor = medusa.tokens_per_second / normal.tokens_per_second
    return Comparison(normal=normal, medusa=medusa, speedup=medusa.speedup_factor)


async def _read_request(request: Request) -> tuple[GenerateRequest, float]:
    """The parsed body, and the time on the monotonic clock at which to time out."""
    wait = wait_s(request)
    params = await json_body(request, GenerateRequest)
    return params, time.monotonic() + (MOST_WAIT_S if wait is None else wait)


async def _run(
    request: Request, gateway: Gateway, params: GenerateRequest, decoding: Decoding, give_up_at: float
) -> Job:
    """Run a job to its end. Raises ApiError if it does not succeed."""
    fields = {
        "prompt": params.prompt,
        "model": params.model,
        "max_tokens": params.max_length,
        "seed": 0,
        "decoding": decoding,
    }
    body = JobRequest.model_validate(fields)
    try:
        job = await run_in_threadpool(submit, gateway, body, owner_of(request))
    except BadRequest as error:
        raise _rename_field(str(error), error.code, error.param) from None
    left_s = max(0.0, give_up_at - time.monotonic())
    job = await caller_of(request).key.unless_revoked(gateway.job_events.wait(job, left_s))
    if not job.terminal:
        raise NotInTime(
            f"{job.id} is still {job.status} and continues: get its result from GET /v1/jobs/{job.id}"
        )
    reason = failure(job)
    if isinstance(reason, BadRequest):
        raise _rename_field(str(reason), reason.code, reason.param)
    if reason is not None:
        raise reason
    return job


def _rename_field(message: str, code: str | None, param: str | None) -> BadRequest:
    """The error of a job, with the name that its field has in this API."""
    if param == "max_tokens":
        message, param = message.replace(param, "max_length"), "max_length"
    return BadRequest(message, code=code, param=param)


def _generated(job: Job, speedup: float | None) -> Generated:
    assert job.result is not None, "the job has succeeded"
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
