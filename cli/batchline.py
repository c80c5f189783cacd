"""Lines of OpenAI's batch files, turned into the fields of POST /v1/jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cli.lines import Problem

KEYS = ("custom_id", "method", "url", "body")
# Fields of OpenAI's bodies that say what we do anyway, with the only value that does.
ONLY_VALUE: Mapping[str, object] = {
    "n": 1,
    "best_of": 1,
    "stream": False,
    "echo": False,
    "store": False,
    "response_format": {"type": "text"},
}
IGNORED = ("user", "stream_options")  # nothing depends on them


def is_batch_line(value: Mapping[str, Any]) -> bool:
    return any(key in value for key in ("body", "url", "method"))


def job_fields(value: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The job fields of a batch line, and what is wrong with it apart from those fields themselves."""
    problems = [Problem("there is no such field", key) for key in value if key not in KEYS]
    if value.get("custom_id") is None:
        problems.append(Problem("missing", "custom_id"))
    if value.get("method") != "POST":
        problems.append(Problem('must be "POST"', "method"))
    translate = TRANSLATORS.get(str(value.get("url")))
    if translate is None:
        allowed = " or ".join(TRANSLATORS)
        problems.append(Problem(f"must be {allowed}", "url", "url_mismatch"))
    body = value.get("body")
    if not isinstance(body, dict):
        problems.append(Problem("must be a JSON object" if "body" in value else "missing", "body"))
    elif translate is not None:
        given = {name: field for name, field in body.items() if field is not None and name not in IGNORED}
        for name, only in ONLY_VALUE.items():
            if name in given and given.pop(name) != only:
                problems.append(Problem("is not supported", f"body.{name}"))
        return translate(given, problems), problems
    return {}, problems


def _chat(body: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    if "max_completion_tokens" in body:
        body["max_tokens"] = body.pop("max_completion_tokens")
    top = body.pop("top_logprobs", None)
    if isinstance(body.get("logprobs"), bool):
        if body.pop("logprobs"):
            body["logprobs"] = top or 0
    elif "logprobs" in body:
        problems.append(Problem("must be true or false; top_logprobs is the number", "body.logprobs"))
        del body["logprobs"]
    if isinstance(body.get("messages"), list):
        body["messages"] = [_message(message) for message in body["messages"]]
    return body


def _message(message: Any) -> Any:
    """A message with its text parts joined; what is no such message is left for the schema to refuse."""
    if not isinstance(message, dict):
        return message
    message = {name: field for name, field in message.items() if field is not None}
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
        message["content"] = "".join(str(part.get("text", "")) for part in content)
    if message.get("role") == "developer":  # OpenAI's newer name of the system role
        message["role"] = "system"
    return message


def _completion(body: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    if isinstance(body.get("logprobs"), bool):
        problems.append(Problem("must be a number here", "body.logprobs"))
        del body["logprobs"]
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        body["prompt"] = prompt[0]
    return {**body, "raw": True}


# What is wrong with the rest of a body is for the gateway's own schema to say.
TRANSLATORS: Mapping[str, Callable[[dict[str, Any], list[Problem]], dict[str, Any]]] = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completion,
}
