"""A claimed job as a request of the engine, and what the engine answers as the job's record has it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

from engine import (
    Acceptance,
    Completion,
    Decoding,
    EngineError,
    FinishReason,
    Request,
    RequestRefused,
    SamplingParams,
    TokenLogprob,
    answer_grammar,
)
from tasks.base.settings import Settings
from tasks.records.claim import Claim
from tasks.records.job import INCOMPLETE, Priority, Status
from tasks.schema.tool_calls import may_call_tools, must_call_tools, split

log = logging.getLogger(__name__)

INTERNAL = "an internal error, which the worker's log describes"
JSON_FORMS = ("json_object", "json_schema")
SAMPLING_FIELDS = tuple(SamplingParams.__dataclass_fields__)
ENGINE_PRIORITY = {Priority.INTERACTIVE: 0, Priority.BULK: 1}
STATUS = {
    FinishReason.STOP: Status.SUCCEEDED,
    FinishReason.LENGTH: Status.SUCCEEDED,
    FinishReason.CANCELLED: Status.CANCELLED,
    FinishReason.EXPIRED: Status.EXPIRED,
}

E = TypeVar("E", bound=StrEnum)


def to_request(claim: Claim, request_id: str, settings: Settings) -> Request:
    """The engine's request from the stored one; raises RequestRefused."""
    body = claim.request
    chosen = {name: body[name] for name in SAMPLING_FIELDS if body.get(name) is not None}
    chosen.setdefault("max_tokens", settings.default_max_tokens)
    for name in ("stop", "stop_token_ids"):
        chosen[name] = tuple(chosen.get(name, ()))
    if "acceptance" in chosen:
        chosen["acceptance"] = _member(Acceptance, chosen["acceptance"], "acceptance")
    tools = tuple(body["tools"]) if may_call_tools(body) else ()
    chosen["grammar"] = answer_grammar(
        body.get("response_format"),
        tools,
        body.get("tool_choice", "auto"),
        body.get("parallel_tool_calls", True),
    )
    if tools:
        chosen["grammar_field"] = "tools"
    chosen["logit_bias"] = {int(token): bias for token, bias in chosen.get("logit_bias", {}).items()}
    messages = body.get("messages")
    return Request(
        id=request_id,
        sampling=SamplingParams(**chosen),
        prompt=body.get("prompt"),
        messages=None if messages is None else tuple({"content": "", **message} for message in messages),
        raw=body.get("raw") or False,
        priority=ENGINE_PRIORITY[claim.priority],
        deadline=claim.deadline,
        decoding=_member(Decoding, body.get("decoding") or Decoding.AUTO, "decoding"),
        tools=tools,
        template_variables=body.get("chat_template_kwargs") or {},
    )


def check_model(name: str | None, served: str) -> None:
    """Raises RequestRefused for a job that is not for the model which this worker serves."""
    if name is not None and name != served:
        message = f"this worker serves {served!r}, not {name!r}"
        raise RequestRefused(message, code="model_not_found", param="model")


def _member(kind: type[E], value: str, param: str) -> E:
    """The engine's own value; raises RequestRefused for one that only a newer gateway knows."""
    try:
        return kind(value)
    except ValueError:
        raise RequestRefused(f"{param} must be one of {', '.join(kind)}", param=param) from None


def _token(token_id: int, piece: bytes, logprob: float) -> dict[str, Any]:
    """bytes only where they are no text: then the token holds a part of a character."""
    text = piece.decode("utf-8", "replace")
    rest = {} if text.encode() == piece else {"bytes": list(piece)}
    return {"token_id": token_id, "token": text, "logprob": logprob, **rest}


def shown(token: TokenLogprob) -> dict[str, Any]:
    """A token of the engine as a result has it."""
    return {
        **_token(token.token_id, token.piece, token.logprob),
        "top": [_token(*alternative) for alternative in token.top],
    }


def to_result(claim: Claim, completion: Completion) -> dict[str, Any]:
    """The stored result. Its timing counts from the job's creation; tokens_per_s from the first attempt
    of the engine at this request, so without the queue."""
    timing = completion.timing
    waited = max(0.0, claim.claimed_at - claim.created_at)
    working = timing.total_s - timing.queue_s
    logprobs = completion.logprobs
    ending = () if completion.end_token is None else (completion.end_token,)
    ids = {"token_ids": [*completion.tokens, *ending]} if claim.request.get("return_token_ids") else {}
    return {
        "text": completion.text,
        **ids,
        "finish_reason": completion.finish_reason.value,
        "usage": {
            "prompt_tokens": completion.prompt_tokens,
            "completion_tokens": completion.completion_tokens,
            "total_tokens": completion.prompt_tokens + completion.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": completion.cached_tokens},
        },
        "logprobs": None if logprobs is None else [shown(token) for token in logprobs],
        "timing": {
            "queue_s": waited + timing.queue_s,
            "first_token_s": None if timing.first_token_s is None else waited + timing.first_token_s,
            "total_s": waited + timing.total_s,
            "tokens_per_s": completion.completion_tokens / working if working > 0 else 0.0,
        },
        "speculation": {
            "steps": completion.steps,
            "tokens_per_step": completion.tokens_per_step,
            "sources": {
                name: {
                    "verified": drafted.verified,
                    "accepted": drafted.accepted,
                    "acceptance": drafted.accepted / drafted.verified if drafted.verified else None,
                }
                for name, drafted in completion.drafted.items()
            },
        },
    }


def incomplete(claim: Claim, completion: Completion) -> dict[str, Any] | None:
    """The error of an answer that had to be JSON or a call and was cut off; None for any other."""
    if completion.finish_reason is not FinishReason.LENGTH or _is_whole(claim.request, completion.text):
        return None
    part = "call of a tool" if must_call_tools(claim.request) else "JSON"
    message = (
        f"the answer was cut off after {completion.completion_tokens} tokens (max_tokens), in its {part}"
    )
    return {"code": INCOMPLETE, "message": message, "param": None}


def _is_whole(request: Mapping[str, Any], text: str) -> bool:
    """Whether an answer that was cut off has what it had to have."""
    if may_call_tools(request) and any(not isinstance(part, str) for part in split(text)):
        return True
    if must_call_tools(request):
        return False
    if (request.get("response_format") or {}).get("type") not in JSON_FORMS:
        return True
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict | list | str)  # it ended with its last token: no beginning of these is JSON


def to_error(claim: Claim, error: Exception) -> dict[str, Any]:
    """The stored error of a job that the engine refused, or that failed by our own fault."""
    if isinstance(error, EngineError):
        return {"code": error.code, "message": error.message, "param": error.param}
    log.error("%s cannot be run", claim.job_id, exc_info=error)
    return {"code": "internal_error", "message": INTERNAL, "param": None}
