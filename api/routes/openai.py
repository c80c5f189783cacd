"""`/v1/chat/completions` and `/v1/completions`: OpenAI's online endpoints, made of interactive jobs.

They show up in /v1/jobs too, for a while. Their only reason is whoever waits: when the connection closes,
they are cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from api.http.error_responses import error_object
from api.http.errors import ApiError
from api.http.sse import EventStream, encoded
from api.requests.caller import caller_of
from api.requests.parsing import json_bytes, unless_closed
from api.requests.schemas import ErrorBody
from api.requests.threads import run_in_threadpool
from api.service.dependencies import Gateway, GatewayDep
from api.service.job_stream import Text
from api.service.online_request import MAX_CHOICES, MOST_BODIES, read
from api.service.online_run import Running
from api.service.stream_chunks import ChatChoice, Choice, CompletionChoice
from tasks.records.endpoints import CHAT, COMPLETIONS
from tasks.schema.openai_responses import answer, answer_of_several, envelope, may_call_tools, total_usage

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
    """OpenAI's chat completions, whole or as a stream; the fields of POST /v1/jobs are taken too."""
    return await _answer(request, gateway, CHAT)


@router.post(COMPLETIONS, openapi_extra=_body("prompt", _PROMPT))
async def completions(request: Request, gateway: GatewayDep) -> Response:
    """OpenAI's completions of raw text, of several prompts too, whole or as a stream."""
    return await _answer(request, gateway, COMPLETIONS)


async def _answer(request: Request, gateway: Gateway, endpoint: str) -> Response:
    most_bytes = MOST_BODIES * gateway.settings.max_body_bytes
    asked = await run_in_threadpool(read, await json_bytes(request), endpoint, most_bytes)
    model = await run_in_threadpool(gateway.served) if asked.stream else None
    running = await Running.start(gateway, asked, caller_of(request))
    headers = {"x-request-id": running.jobs[0].id}
    try:
        if asked.stream:
            events = _events(running, model)
            first = await unless_closed(request, anext(events))
            return EventStream(_after(first, events), running.cancel_rest, headers)
        await unless_closed(request, running.wait())
    except BaseException:
        running.cancel_rest()
        raise
    running.cancel_rest()
    return JSONResponse(_whole(running), headers=headers)


def _whole(running: Running) -> dict[str, Any]:
    records = [job.to_json() for job in running.ended]
    if len(records) == 1:
        return answer(records[0])
    return answer_of_several(records, running.asked.n)


async def _events(running: Running, model: str | None) -> AsyncGenerator[bytes, None]:
    """The stream's events. Raises before the first one what later is an event of its own."""
    begun = False
    try:
        async with aclosing(_chunks(running, model)) as chunks:
            async for chunk in chunks:
                begun = True
                yield encoded(chunk)
    except Exception as error:
        if not begun:
            raise
        if not isinstance(error, ApiError):
            log.exception("a stream broke off")
        yield encoded(error_object(error))
    else:
        yield encoded(DONE)


async def _after(first: bytes, events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    yield first
    async for event in events:
        yield event


async def _chunks(running: Running, model: str | None) -> AsyncGenerator[dict[str, Any], None]:
    asked, jobs = running.asked, running.jobs
    head = envelope(jobs[0].to_json(), model)
    raw = asked.job.raw
    if not raw:
        head["object"] = "chat.completion.chunk"
    usage = {"usage": None} if asked.include_usage else {}
    choices: list[Choice] = [
        CompletionChoice(place) if raw else ChatChoice(place, job.id, may_call_tools(job.request))
        for place, job in enumerate(jobs)
    ]
    async with aclosing(running.news()) as all_news:
        async for place, news in all_news:
            if isinstance(news, Text):
                entries = choices[place].text(news)
            else:
                assert news.result is not None, "it has succeeded"
                entries = choices[place].end(news.result["finish_reason"])
            for entry in entries:
                yield {**head, "choices": [entry], **usage}
    if asked.include_usage:
        records = [job.to_json() for job in running.ended]
        yield {**head, "choices": [], "usage": total_usage(records, asked.n)}
