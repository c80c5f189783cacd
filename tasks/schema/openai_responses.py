"""Translates job records into OpenAI's response bodies: chat.completion, text_completion and their parts.

A record is the result of Job.to_json(). A job with raw text is a text completion, any other a chat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tasks.schema.openai_requests import as_written, renamed
from tasks.schema.responses_api.objects import is_response, response
from tasks.schema.tool_calls import may_call_tools, split, tool_call

TOOL_CALLS = "tool_calls"
MODEL_NOT_FOUND = "model_not_found"


class ErrorResponse(NamedTuple):
    """Status and error object of a response."""

    status: int
    error: dict[str, Any]


def error_response(error: Mapping[str, Any], request: Mapping[str, Any]) -> ErrorResponse | None:
    """The HTTP error of a job that failed because its request is invalid; None for any other failure.

    error and request are those of the job's record.
    """
    code, message, param = error["code"], error["message"], error["param"]
    if code != MODEL_NOT_FOUND and param is None:
        return None
    if param is not None:
        written = as_written(param, request)
        message, param = renamed(message, param, written), written
    shown = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return ErrorResponse(404 if code == MODEL_NOT_FOUND else 400, shown)


def answer(record: Mapping[str, Any]) -> dict[str, Any]:
    """The body that answers one request."""
    logprobs = chat_logprobs(record["result"]["logprobs"]) or {}
    whole = (
        response(record, logprobs.get("content", ()))
        if is_response(record["request"])
        else answer_of_several([record], 1)
    )
    return {
        **whole,
        "speculation": record["result"].get("speculation"),  # null from older workers
    }


def answer_of_several(records: Sequence[Mapping[str, Any]], n: int) -> dict[str, Any]:
    """The body that answers one or more prompts n times each, the choices in the order of the records."""
    return {
        **envelope(records[0]),
        "choices": [choice(record, index) for index, record in enumerate(records)],
        "usage": total_usage(records, n),
    }


def envelope(record: Mapping[str, Any], model: str | None = None) -> dict[str, Any]:
    """The fields around the choices. model: the served one, for a record without a model."""
    kind, prefix = ("text_completion", "cmpl") if is_raw(record) else ("chat.completion", "chatcmpl")
    return {
        "id": f"{prefix}-{record['id'].removeprefix('job_')}",
        "object": kind,
        "created": int(record["created_at"]),
        "model": record["model"] or model,
    }


def choice(record: Mapping[str, Any], index: int = 0) -> dict[str, Any]:
    """The entry of `choices` for a job. token_ids, which OpenAI's lack, only if the job asked for them."""
    result = record["result"]
    text, reason, logprobs = result["text"], result["finish_reason"], result["logprobs"]
    ids = {"token_ids": result["token_ids"]} if "token_ids" in result else {}
    if is_raw(record):
        return {
            "index": index,
            "text": text,
            "logprobs": completion_logprobs(logprobs),
            "finish_reason": reason,
            **ids,
        }
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if may_call_tools(record["request"]):
        parts = split(text)
        functions = [part for part in parts if not isinstance(part, str)]
        if functions:
            calls = [tool_call(function, record["id"], number) for number, function in enumerate(functions)]
            content = "".join(part for part in parts if isinstance(part, str))
            message |= {"content": content or None, TOOL_CALLS: calls}
            reason = TOOL_CALLS
    return {
        "index": index,
        "message": message,
        "logprobs": chat_logprobs(logprobs),
        "finish_reason": reason,
        **ids,
    }


def total_usage(records: Sequence[Mapping[str, Any]], n: int) -> dict[str, Any]:
    """The usage of n answers to each prompt. A prompt's tokens count once, as OpenAI counts them."""
    usages = [record["result"]["usage"] for record in records]
    prompts = usages[::n]
    prompt = sum(usage["prompt_tokens"] for usage in prompts)
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in prompts)
    completion = sum(usage["completion_tokens"] for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def is_raw(record: Mapping[str, Any]) -> bool:
    return bool(record["request"].get("raw"))


def chat_logprobs(tokens: Sequence[Mapping[str, Any]] | None) -> dict[str, Any] | None:
    """Stored tokens in the format of chats."""
    if tokens is None:
        return None
    return {
        "content": [{**_token(t), "top_logprobs": [_token(top) for top in t["top"]]} for t in tokens],
        "refusal": None,
    }


def _token(token: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "token": token["token"],
        "logprob": token["logprob"],
        "bytes": list(_piece(token)),
    }


def completion_logprobs(tokens: Sequence[Mapping[str, Any]] | None, offset: int = 0) -> dict[str, Any] | None:
    """Stored tokens in the format of text completions; offset: number of characters begun before them."""
    if tokens is None:
        return None
    offsets = []
    for token in tokens:
        within = _piece(token)[:1] and not _begins(_piece(token)[0])
        offsets.append(max(0, offset - 1) if within else offset)
        offset += begun(token)
    return {
        "tokens": [token["token"] for token in tokens],
        "token_logprobs": [token["logprob"] for token in tokens],
        "top_logprobs": [{top["token"]: top["logprob"] for top in token["top"]} for token in tokens],
        "text_offset": offsets,
    }


def begun(token: Mapping[str, Any]) -> int:
    """Number of characters that begin in this token, which may hold only a part of one."""
    return sum(map(_begins, _piece(token)))


def _piece(token: Mapping[str, Any]) -> bytes:
    return bytes(token.get("bytes") or str(token["token"]).encode())


def _begins(byte: int) -> bool:
    """Whether this byte of UTF-8 is the first one of a character."""
    return byte & 0xC0 != 0x80
