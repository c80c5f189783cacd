"""`/v1/chat/completions` and `/v1/completions`: OpenAI's online endpoints, which run interactive jobs.

The jobs are also listed in /v1/jobs for a while. They are cancelled when the connection closes.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.http.error_responses import error_object
from api.http.errors import ApiError
from api.http.sse import encoded
from api.requests.parsing import json_bytes
from api.requests.schemas import ErrorBody
from api.requests.threads import run_in_threadpool
from api.routes.openai.answering import answered
from api.service.dependencies import Gateway, GatewayDep
from api.service.job_stream import Text
from api.service.online_request import MAX_CHOICES, MOST_BODIES, read
from api.service.online_run import OnlineRun
from api.service.stream_chunks import ChatChoice, CompletionChoice, StreamChoice
from tasks.records.endpoints import CHAT, COMPLETIONS
from tasks.schema.openai_responses import answer, answer_of_several, envelope, total_usage
from tasks.schema.tool_calls import may_call_tools

log = logging.getLogger(__name__)

DONE = "[DONE]"
_ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorBody} for code in (400, 404, 409, 413, 415, 500, 503, 504)
}

router = APIRouter(tags=["OpenAI"], responses=_ERRORS)


_TEXT = {"type": "string", "minLength": 1}
_PROMPT = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MAX_CHOICES}]}
_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
_MESSAGE = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}, {"type": "null"}]},
    },
}
_MESSAGES = {"type": "array", "items": _MESSAGE, "minItems": 1}


def _body(name: str, field: dict[str, Any]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "required": [name],
        "properties": {name: field},
        "additionalProperties": True,
    }
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


@router.post(CHAT, openapi_extra=_body("messages", _MESSAGES))
async def chat_completions(request: Request, gateway: GatewayDep) -> Response:
    """OpenAI's chat completions, also streamed; the fields of POST /v1/jobs are accepted too.

    With `"stream_options": {"include_drafts": true}` the choices of a stream have `drafts`, as the events of
    a job have."""
    return await _answer(request, gateway, CHAT)


@router.post(COMPLETIONS, openapi_extra=_body("prompt", _PROMPT))
async def completions(request: Request, gateway: GatewayDep) -> Response:
    """OpenAI's text completions, also of several prompts, also streamed."""
    return await _answer(request, gateway, COMPLETIONS)


async def _answer(request: Request, gateway: Gateway, endpoint: str) -> Response:
    most_bytes = MOST_BODIES * gateway.settings.max_body_bytes
    online = await run_in_threadpool(read, await json_bytes(request), endpoint, most_bytes)
    return await answered(request, gateway, online, _whole, _events)


def _whole(run: OnlineRun) -> dict[str, Any]:
    records = [job.to_json() for job in run.ended]
    if len(records) == 1:
        return answer(records[0])
    return answer_of_several(records, run.request.n)


async def _events(run: OnlineRun, model: str | None) -> AsyncGenerator[bytes, None]:
    """The events of the stream. An error before the first event is raised, a later one becomes an event."""
    begun = False
    try:
        async with aclosing(_chunks(run, model)) as chunks:
            async for chunk in chunks:
                begun = True
                yield encoded(chunk)
    except Exception as error:
        if not begun:
            raise
        if not isinstance(error, ApiError):
            log.exception("a stream was aborted by an internal error")
        yield encoded(error_object(error))
    else:
        yield encoded(DONE)


async def _chunks(run: OnlineRun, model: str | None) -> AsyncGenerator[dict[str, Any], None]:
    request, jobs = run.request, run.jobs
    head = envelope(jobs[0].to_json(), model)
    raw = request.job.raw
    if not raw:
        head["object"] = "chat.completion.chunk"
    usage = {"usage": None} if request.include_usage else {}
    choices: list[StreamChoice] = [
        CompletionChoice(index) if raw else ChatChoice(index, job.id, may_call_tools(job.request))
        for index, job in enumerate(jobs)
    ]
    async with aclosing(run.updates()) as updates:
        async for index, update in updates:
            if isinstance(update, Text):
                entries = choices[index].text(update)
                if request.include_drafts and update.drafts and not may_call_tools(jobs[index].request):
                    entries[-1]["drafts"] = update.drafts_json()  # calls of tools are cut out of the text
            else:
                assert update.result is not None, "the job has an answer"
                entries = choices[index].end(update.result["finish_reason"])
            for entry in entries:
                yield {**head, "choices": [entry], **usage}
    if request.include_usage:
        records = [job.to_json() for job in run.ended]
        yield {**head, "choices": [], "usage": total_usage(records, request.n)}
