"""Translates job records into response objects of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.records.job import INCOMPLETE
from tasks.schema.tool_calls import Function, may_call_tools, split, tool_call

PREFIX = "resp_"
CUT_OFF = "length"  # finish_reason
STATUS = {  # of a job that has no answer
    "queued": "queued",
    "running": "in_progress",
    "failed": "failed",
    "cancelled": "cancelled",
    "expired": "failed",
}
EXPIRED = {"code": "server_error", "message": "there was no answer in time"}


def response_id(job_id: str) -> str:
    return PREFIX + job_id.removeprefix("job_")


def is_response(request: Mapping[str, Any]) -> bool:
    """Whether this request of a job is one of the Responses API."""
    return request.get("response") is not None


def response(
    record: Mapping[str, Any], logprobs: Sequence[Mapping[str, Any]] = (), model: str | None = None
) -> dict[str, Any]:
    """The response object of a job, whatever its status.

    logprobs: of the answer's tokens, as chats have them. model: the served one, for a record without a model.
    """
    request, result, error = record["request"], record.get("result"), record.get("error")
    if not has_answer(record):
        result = None
    cut_off = result is not None and result["finish_reason"] == CUT_OFF
    status = STATUS[record["status"]] if result is None else "incomplete" if cut_off else "completed"
    failure = None
    if status == "failed":
        failure = EXPIRED if error is None else {"code": error["code"], "message": error["message"]}
    return {
        "id": response_id(record["id"]),
        "object": "response",
        "created_at": int(record["created_at"]),
        "status": status,
        "completed_at": _ended_at(record) if status == "completed" else None,
        "background": False,
        "error": failure,
        "incomplete_details": {"reason": "max_output_tokens"} if cut_off else None,
        "model": record["model"] or model,
        "output": [] if result is None else output(record, logprobs),
        "usage": None if result is None else _usage(result["usage"]),
        **_repeated(request),
    }


def has_answer(record: Mapping[str, Any]) -> bool:
    """Whether there is one, whole or cut off at max_tokens."""
    error = record.get("error")
    ended = record.get("status", "succeeded") not in ("cancelled", "expired")  # collected records have none
    return record.get("result") is not None and ended and (error is None or error["code"] == INCOMPLETE)


def _ended_at(record: Mapping[str, Any]) -> int:
    return int(record["created_at"] + record["result"]["timing"]["total_s"])


def _repeated(request: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the request, with their defaults."""
    origin = request["response"]
    logprobs = request.get("logprobs")
    return {
        "instructions": request["messages"][0]["content"] if origin.get("instructed") else None,
        "max_output_tokens": request.get("max_tokens"),
        "metadata": request.get("metadata", {}),
        "parallel_tool_calls": request.get("parallel_tool_calls", True),
        "previous_response_id": origin.get("previous_response_id"),
        "reasoning": {"effort": None, "summary": None},
        "store": origin.get("store", True),
        "temperature": request.get("temperature", 0.0),
        "text": {"format": _format(request.get("response_format"))},
        "tool_choice": _tool_choice(request.get("tool_choice", "auto")),
        "tools": [{"type": "function", **_function(tool["function"])} for tool in request.get("tools", ())],
        "top_logprobs": 0 if logprobs is None else logprobs,
        "top_p": request.get("top_p", 1.0),
        "truncation": "disabled",
    }


def _function(function: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": None, "parameters": None, "strict": False, **function}


def _format(form: Mapping[str, Any] | None) -> dict[str, Any]:
    if form is None:
        return {"type": "text"}
    return {"type": form["type"], **(form.get("json_schema") or {})}


def _tool_choice(choice: Any) -> Any:
    return choice if isinstance(choice, str) else {"type": "function", "name": choice["function"]["name"]}


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "cache_write_tokens": 0,
        },
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }


# Output items: texts and calls in their order


def output(record: Mapping[str, Any], logprobs: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """The items of an answer; logprobs go with its only text."""
    text = record["result"]["text"]
    parts = split(text) if may_call_tools(record["request"]) else [text]
    items: list[dict[str, Any]] = []
    calls = 0
    for part in _joined(parts) or [""]:
        if isinstance(part, str):
            cut_off = record["result"]["finish_reason"] == CUT_OFF
            status = "incomplete" if cut_off else "completed"
            content = [text_part(part, logprobs)]
            items.append({**message_item(record["id"], len(items), status), "content": content})
        else:
            items.append(call_item(part, record["id"], calls, "completed"))
            calls += 1
    return items


def _joined(parts: Sequence[str | Function]) -> list[str | Function]:
    joined: list[str | Function] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


def message_item(job_id: str, number: int, status: str) -> dict[str, Any]:
    """A message without content; number: of the item."""
    identity = f"msg_{job_id.removeprefix('job_')}_{number}"
    return {"id": identity, "type": "message", "status": status, "role": "assistant", "content": []}


def text_part(text: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    return {"type": "output_text", "annotations": [], "logprobs": [*logprobs], "text": text}


def call_item(function: Function, job_id: str, number: int, status: str) -> dict[str, Any]:
    """number: of the call."""
    call_id = tool_call(function, job_id, number)["id"]
    return {
        "id": f"fc_{job_id.removeprefix('job_')}_{number}",
        "type": "function_call",
        "status": status,
        "call_id": call_id,
        **function,
    }


def as_message(record: Mapping[str, Any]) -> dict[str, Any]:
    """The answer as a message of the conversation that goes on with it."""
    text = record["result"]["text"]
    parts = split(text) if may_call_tools(record["request"]) else [text]
    functions = [part for part in parts if not isinstance(part, str)]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(part for part in parts if isinstance(part, str)),
    }
    if functions:
        calls = [tool_call(function, record["id"], number) for number, function in enumerate(functions)]
        message["tool_calls"] = calls
    return message
