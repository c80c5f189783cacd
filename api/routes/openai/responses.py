"""`/v1/responses`: OpenAI's Responses API. A response is a job: it is stored, found and deleted as one."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from api.http.error_responses import error_object
from api.http.errors import ApiError, BadRequest
from api.http.sse import encoded
from api.requests.ids import ResponseId
from api.requests.parsing import json_bytes, seen_by
from api.requests.schemas import ErrorBody
from api.requests.threads import run_in_threadpool
from api.routes.openai.answering import answered
from api.service.dependencies import Gateway, GatewayDep
from api.service.job_stream import Text
from api.service.online_request import MOST_BODIES, OnlineRequest, read_response
from api.service.online_run import OnlineRun
from api.service.stream_chunks import ResponseEvents
from tasks.base.errors import JobNotFound, ResponseNotFound
from tasks.records.endpoints import RESPONSES
from tasks.records.ids import RESPONSE
from tasks.records.job import Job
from tasks.schema.job_request import read_object
from tasks.schema.openai_responses import answer, chat_logprobs
from tasks.schema.responses_api.objects import PREFIX, as_message, has_answer, is_response, response
from tasks.schema.tool_calls import may_call_tools

log = logging.getLogger(__name__)

_ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorBody} for code in (400, 404, 409, 413, 415, 500, 503, 504)
}
_INPUT = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}
_BODY = {
    "type": "object",
    "required": ["input"],
    "properties": {"input": _INPUT},
    "additionalProperties": True,
}

router = APIRouter(tags=["OpenAI"], responses=_ERRORS)


@router.post(
    RESPONSES,
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _BODY}}}},
)
async def create_response(request: Request, gateway: GatewayDep) -> Response:
    """OpenAI's responses, also streamed; the fields of POST /v1/jobs are accepted too."""
    data = await json_bytes(request)
    online = await run_in_threadpool(_read, data, gateway, seen_by(request))
    return await answered(request, gateway, online, lambda run: answer(run.ended[0].to_json()), _events)


@router.get(f"{RESPONSES}/{{response_id}}")
async def get_response(response_id: ResponseId, request: Request, gateway: GatewayDep) -> JSONResponse:
    """A stored response, for as long as jobs are kept; also while it is made."""
    job = await run_in_threadpool(_stored, gateway, response_id, seen_by(request))
    record = job.to_json()
    logprobs = chat_logprobs((record["result"] or {}).get("logprobs")) or {}
    return JSONResponse(response(record, logprobs.get("content", ())))


@router.delete(f"{RESPONSES}/{{response_id}}")
async def delete_response(response_id: ResponseId, request: Request, gateway: GatewayDep) -> JSONResponse:
    """Delete a response that has ended, and its job."""
    owner = seen_by(request)
    job = await run_in_threadpool(_stored, gateway, response_id, owner)
    await run_in_threadpool(gateway.store.delete, job.id, owner)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


def _read(data: bytes, gateway: Gateway, sees: str | None) -> OnlineRequest:
    body = read_object(data)
    previous = body.get("previous_response_id")
    earlier = [] if previous is None else _conversation(gateway, previous, sees)
    return read_response(body, earlier, MOST_BODIES * gateway.settings.max_body_bytes)


def _conversation(gateway: Gateway, previous: Any, sees: str | None) -> list[dict[str, Any]]:
    """The messages up to the answer of a response, without its instructions. Raises BadRequest."""
    field = "previous_response_id"
    known = isinstance(previous, str) and RESPONSE.matches(previous)
    try:
        record = _stored(gateway, previous, sees).to_json() if known else None
    except ResponseNotFound:
        record = None
    if record is None:
        message = f"{field}: no response with this id is stored"
        raise BadRequest(message, code="previous_response_not_found", param=field)
    if not has_answer(record):
        raise BadRequest(f"{field}: it has no answer", param=field)
    messages: list[dict[str, Any]] = record["request"]["messages"]
    first = 1 if record["request"]["response"].get("instructed") else 0
    return [*messages[first:], as_message(record)]


def _stored(gateway: Gateway, response_id: str, sees: str | None) -> Job:
    """Raises ResponseNotFound."""
    try:
        job = gateway.store.get(f"job_{response_id.removeprefix(PREFIX)}", sees)
    except JobNotFound:
        raise ResponseNotFound(response_id) from None
    if not is_response(job.request) or not job.request["response"].get("store", True):
        raise ResponseNotFound(response_id)
    return job


async def _events(run: OnlineRun, model: str | None) -> AsyncGenerator[bytes, None]:
    """An error before the first event is raised, a later one becomes an event."""
    job = run.jobs[0]
    events = ResponseEvents(job.to_json(), may_call_tools(job.request), model)
    begun = False
    try:
        async with aclosing(run.updates()) as updates:
            async for _, update in updates:
                made = [] if begun else events.begin()
                begun = True
                made += events.text(update) if isinstance(update, Text) else events.end(update.to_json())
                for event in made:
                    yield encoded(event, event["type"])
    except Exception as error:
        if not begun:
            raise
        if not isinstance(error, ApiError):
            log.exception("a stream was aborted by an internal error")
        told: Any = error_object(error)["error"]
        event = events.failed({"code": told["code"], "message": told["message"]})
        yield encoded(event, event["type"])
