"""Translates OpenAI's chat and completion request bodies into job fields.

Shared by the online endpoints, batch files and the command. Fields without an effect on the answer are
dropped, and each unsupported field is a Problem. The job's schema (job_request.py), whose fields have the
same names, validates the rest. openai_responses.py is the reverse translation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeGuard

from tasks.records.endpoints import CHAT, COMPLETIONS, ENDPOINTS, JOBS, RESPONSES
from tasks.schema.job_request import MAX_MESSAGES, MOST_FINDINGS, SEED_LIMIT, UNKNOWN_FIELD, Problem
from tasks.schema.responses_api.requests import chat_body, written_there

KEYS = ("custom_id", "method", "url", "body")
MAX_CUSTOM_ID = 512  # characters, as OpenAI's
OF_THE_BATCH = ("deadline", "priority", "webhook")  # job fields that a batch sets for all its lines

# They do not affect the answer: ids for OpenAI's accounts and caches, hints about speed.
IGNORED = frozenset(
    {
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "user",
        "verbosity",
    }
)
# Fields with the only supported value, which is the default. The online endpoints handle n and stream before.
ONLY_VALUE: Mapping[str, tuple[object, str]] = {
    "n": (1, "only 1 answer a line is possible: send a line for each"),
    "best_of": (1, "only 1 is possible"),
    "stream": (False, "nothing can be streamed from a batch"),
    "echo": (False, "the prompt cannot be echoed"),
    "suffix": ("", "text cannot be inserted before a suffix"),
    "modalities": (["text"], "only text can be answered"),
    "return_token_ids": (False, "only jobs return them"),
}
REFUSED: Mapping[str, str] = {
    "audio": "sound cannot be answered",
    "function_call": "is obsolete: use tool_choice",
    "functions": "is obsolete: use tools",
    "moderation": "is not supported",
    "web_search_options": "the web cannot be searched",
}
# In an assistant's message as OpenAI's client returns it; function_call is rejected unless it is null.
IGNORED_IN_MESSAGES = frozenset({"annotations", "refusal"})
REFUSED_IN_MESSAGES: Mapping[str, str] = {
    "audio": "only text is supported",
    "function_call": "is obsolete: use tool_calls",
}
FILLER = "-"  # replaces a rejected value, so that the schema does not reject it again
# Job field: its name in chat requests. The engine calls every input a prompt.
RENAMED = {"max_tokens": "max_completion_tokens", "logprobs": "top_logprobs", "prompt": "messages"}


def is_batch_line(value: Mapping[str, Any]) -> bool:
    return any(key in value for key in ("body", "url", "method"))


def line_fields(value: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The job fields of a line of any file of requests, and the problems with the rest of it.

    A line is a batch line, or the fields of a job as they stand, beside a custom_id.
    """
    if is_batch_line(value):
        return job_fields(value)
    return own_fields({name: given for name, given in value.items() if name != "custom_id"})


def default_id(number: int, what: str = "line") -> str:
    """The custom_id of a request that brings none."""
    return f"{what}-{number}"


def job_fields(value: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The job fields of a batch line, which are not validated here, and the problems with the rest of it."""
    problems = [Problem("there is no such field", key, UNKNOWN_FIELD) for key in value if key not in KEYS]
    if value.get("custom_id") is None:
        problems.append(Problem("missing", "custom_id"))
    if value.get("method") != "POST":
        problems.append(Problem('must be "POST"', "method"))
    url, body = value.get("url"), value.get("body")
    known = isinstance(url, str) and url in ENDPOINTS
    if not known:
        *some, last = ENDPOINTS
        problems.append(Problem(f"must be {', '.join(some)} or {last}", "url", "url_mismatch"))
    if not isinstance(body, dict):
        problems.append(Problem("must be a JSON object" if "body" in value else "missing", "body"))
    elif known:
        if url == JOBS:
            fields, found = own_fields(body)
        else:
            fields, found = body_fields(str(url), body)
            found += _not_of_a_line(fields)
            if fields.get("response", {}).get("previous_response_id") is not None:
                found.append(Problem("a line continues no other response", "previous_response_id"))
        problems += [replace(problem, field=f"body.{problem.field}") for problem in found]
        return fields, problems
    return {}, problems


def own_fields(body: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The job fields of a line's body for JOBS; null counts as absent, also in messages."""
    given = _given(body)
    if isinstance(messages := given.get("messages"), list):
        given["messages"] = [
            _given(message) if isinstance(message, dict) else message for message in messages
        ]
    return given, _not_of_a_line(given)


def _not_of_a_line(fields: dict[str, Any]) -> list[Problem]:
    """Remove the fields that only a batch can set, with a problem for each."""
    found = [name for name in OF_THE_BATCH if fields.pop(name, None) is not None]
    return [Problem("a batch has one for all its lines", name) for name in found]


def _given(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


def body_fields(endpoint: str, body: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The job fields of a body for one of OpenAI's endpoints, and a problem for each unsupported field."""
    if endpoint == RESPONSES:
        chat, origin, problems = chat_body(body)
        fields, found = body_fields(CHAT, chat)
        problems += [replace(problem, field=written_there(problem.field or "")) for problem in found]
        return {**fields, "response": origin}, problems
    given = {name: value for name, value in body.items() if value is not None and name not in IGNORED}
    problems = [Problem(reason, name) for name, reason in REFUSED.items() if name in given]
    given = {name: value for name, value in given.items() if name not in REFUSED}
    for name, (only, reason) in ONLY_VALUE.items():
        if name in given and not _same(given.pop(name), only):
            problems.append(Problem(reason, name))
    _guide(given, problems)
    seed = given.get("seed")
    if _whole(seed) and -SEED_LIMIT <= seed < 0:
        given["seed"] = seed + SEED_LIMIT  # OpenAI's seeds may be negative, the engine's may not
    return TRANSLATORS[endpoint](given, problems), problems


def _guide(body: dict[str, Any], problems: list[Problem]) -> None:
    """vLLM's fields of a JSON schema, as a response_format."""
    for name, inner in (("guided_json", None), ("structured_outputs", "json")):
        given = body.pop(name, None)
        if given is None:
            continue
        schema, path = given, name
        if inner is not None:
            if not isinstance(given, dict) or given.keys() != {inner}:
                problems.append(Problem(f"only {inner}, a schema, is supported", name))
                continue
            schema, path = given[inner], f"{name}.{inner}"
        if isinstance(schema, str):
            with suppress(ValueError, RecursionError):
                schema = json.loads(schema)
        if not isinstance(schema, dict):
            problems.append(Problem("must be a JSON schema", path))
        elif "response_format" in body:
            problems.append(Problem("give this or response_format", name))
        else:
            form = {"name": "guided", "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": form}


def as_written(field: str, body: Mapping[str, Any]) -> str:
    """The name of a job's field as this body, or the job of it, spells it."""
    if "input" in body or "response" in body:
        return written_there(field)
    given = RENAMED.get(field)
    return field if given is None or body.get(given) is None else given


def renamed(message: str, field: str, written: str) -> str:
    """Replace the field's name at the beginning of a message, if it is there."""
    return written + message.removeprefix(field) if message.startswith(field) else message


def in_body(problems: list[Problem], line: Mapping[str, Any]) -> list[Problem]:
    """The problems of a line's job, with the field names that the line uses."""
    if not is_batch_line(line):
        return problems
    body = {} if line["url"] == JOBS else line["body"]
    return [
        replace(problem, field=f"body.{as_written(problem.field, body)}" if problem.field else "body")
        for problem in problems
    ]


def _chat(body: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    _needs("messages", "prompt", [{"role": "user", "content": ""}], body, problems)
    if "max_completion_tokens" in body:
        body["max_tokens"] = body.pop("max_completion_tokens")
    top = body.pop("top_logprobs", None)
    wanted = body.pop("logprobs", False)
    if not isinstance(wanted, bool):
        problems.append(Problem("must be true or false; top_logprobs is the number", "logprobs"))
    elif wanted:
        body["logprobs"] = 0 if top is None else top
    elif top is not None and not _same(top, 0):
        problems.append(Problem("needs logprobs to be true", "top_logprobs"))
    if isinstance(body.get("messages"), list) and len(body["messages"]) <= MAX_MESSAGES:
        body["messages"] = [
            _message(message, f"messages.{index}", problems) for index, message in enumerate(body["messages"])
        ]
    _allow_tools(body)
    return body


def _allow_tools(body: dict[str, Any]) -> None:
    """Offer only the tools that tool_choice allows, where it has a list of them."""
    choice = body.get("tool_choice")
    allowed = choice.get("allowed_tools") if isinstance(choice, dict) else None
    if not isinstance(allowed, dict) or not isinstance(allowed.get("tools"), list):
        return
    tools = body.get("tools")
    if isinstance(tools, list):
        names = [_function_name(tool) for tool in allowed["tools"]]
        body["tools"] = [tool for tool in tools if _function_name(tool) in names]
    body["tool_choice"] = allowed.get("mode")


def _function_name(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None


def _message(message: Any, path: str, problems: list[Problem]) -> Any:
    """A message with its text parts joined. The schema rejects anything that is not a message."""
    if not isinstance(message, dict):
        return message
    given = {name: v for name, v in message.items() if v is not None and name not in IGNORED_IN_MESSAGES}
    for name, reason in REFUSED_IN_MESSAGES.items():
        if given.pop(name, None) is not None:
            problems.append(Problem(reason, f"{path}.{name}"))
    if isinstance(given.get("content"), list):
        given["content"] = _text(given["content"], f"{path}.content", problems)
    elif "content" not in given and isinstance(message.get("refusal"), str):
        given["content"] = message["refusal"]
    if given.get("role") == "developer":  # OpenAI's newer name of the system role
        given["role"] = "system"
    return given


def _text(parts: list[Any], path: str, problems: list[Problem]) -> str:
    texts = []
    for index, part in enumerate(parts):
        if len(problems) > MOST_FINDINGS:
            break
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get(kind) if kind in ("text", "refusal") else None
        if isinstance(text, str):
            texts.append(text)
        else:
            seen = f", not {kind}" if isinstance(kind, str) and kind != "text" else ""
            problems.append(Problem(f"must be a part of text{seen}", f"{path}.{index}"))
    return "".join(texts)


def _completion(body: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    _needs("prompt", "messages", FILLER, body, problems)
    if isinstance(body.get("logprobs"), bool):
        problems.append(Problem("must be a number here", "logprobs"))
        del body["logprobs"]
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        body["prompt"] = prompt[0]
    elif isinstance(prompt, list):
        tokens = any(_whole(item) or isinstance(item, list) for item in prompt)
        reason = "token ids cannot be read: send text" if tokens else "must be one text: send a line for each"
        problems.append(Problem(reason, "prompt"))
        body["prompt"] = FILLER
    return {**body, "raw": True}


def _needs(name: str, other: str, filler: object, body: dict[str, Any], problems: list[Problem]) -> None:
    """Check that the input is in the field `name`, and not in `other`, its name at the other endpoint."""
    if body.pop(other, None) is not None:
        problems.append(Problem(f"belongs to the other endpoint: send {name}", other))
    elif name not in body:
        problems.append(Problem("missing", name))
    body.setdefault(name, filler)


def _same(value: object, only: object) -> bool:
    """Equality that distinguishes true from 1."""
    return value == only and isinstance(value, bool) == isinstance(only, bool)


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


TRANSLATORS: Mapping[str, Callable[[dict[str, Any], list[Problem]], dict[str, Any]]] = {
    CHAT: _chat,
    COMPLETIONS: _completion,
}
