"""Translates bodies of OpenAI's Responses API into those of chat completions.

What only the Responses API has is refused where it would change the answer, and left out where not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.schema.job_request import MOST_FINDINGS, Problem

# Without an effect: there are no tools but the caller's, and no reasoning apart from the text.
IGNORED = frozenset({"max_tool_calls", "reasoning", "include"})
ONLY_VALUE: Mapping[str, tuple[object, str]] = {
    "background": (False, "answers are not made in the background: send a job to POST /v1/jobs"),
    "truncation": ("disabled", "the input is never shortened"),
}
REFUSED: Mapping[str, str] = {
    "context_management": "is not supported",
    "conversation": "is not supported: send the input, or previous_response_id",
    "messages": "belongs to the other endpoint: send input",
    "prompt": "is not supported: send input",
    "response_format": "belongs to the other endpoint: send text.format",
}
LOGPROBS = "message.output_text.logprobs"  # in `include`
TEXT_PARTS = ("input_text", "output_text", "text", "refusal")
FUNCTION = ("name", "description", "parameters", "strict")  # fields of a function's tool
SCHEMA = ("name", "description", "schema", "strict")  # fields of a format of the type json_schema


def chat_body(body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], list[Problem]]:
    """The body of a chat, the fields of a ResponseOrigin, and problems with fields that only this API has.

    Paths of problems are those of the caller. The rest is not validated.
    """
    given = {name: value for name, value in body.items() if value is not None}
    problems = [
        Problem(reason, name) for name, reason in REFUSED.items() if given.pop(name, None) is not None
    ]
    for name, (only, reason) in ONLY_VALUE.items():
        if name in given and given.pop(name) != only:
            problems.append(Problem(reason, name))
    included = given.get("include")
    chat = {name: value for name, value in given.items() if name not in IGNORED}
    origin = {"store": chat.pop("store", True), "instructed": "instructions" in chat}
    if "previous_response_id" in chat:
        origin["previous_response_id"] = chat.pop("previous_response_id")
    if "max_output_tokens" in chat:
        chat["max_tokens"] = chat.pop("max_output_tokens")
    if isinstance(included, list) and LOGPROBS in included:
        chat["logprobs"] = True
    elif chat.get("top_logprobs") == 0:
        del chat["top_logprobs"]
    _format(chat, problems)
    chat["messages"] = _messages(chat, problems)
    if isinstance(chat.get("tools"), list):
        chat["tools"] = [
            _tool(tool, f"tools.{number}", problems) for number, tool in enumerate(chat["tools"])
        ]
        if not chat["tools"]:  # as some clients send it for none
            del chat["tools"]
    if isinstance(choice := chat.get("tool_choice"), dict):
        chat["tool_choice"] = _tool_choice(choice)
    return chat, origin, problems


def written_there(field: str) -> str:
    """A field of a chat as the body of the Responses API spells it."""
    for ours, theirs in (
        ("messages", "input"),
        ("prompt", "input"),
        ("max_tokens", "max_output_tokens"),
        ("logprobs", "top_logprobs"),
        ("response_format.json_schema", "text.format"),
        ("response_format", "text.format"),
    ):
        if field == ours or field.startswith(f"{ours}."):
            return theirs if theirs == "input" else theirs + field[len(ours) :]
    if field.startswith("tools."):
        return field.replace(".function.", ".")
    return field.removeprefix("response.")


# Input


def _messages(chat: dict[str, Any], problems: list[Problem]) -> list[Any]:
    messages: list[Any] = []
    instructions, given = chat.pop("instructions", None), chat.pop("input", None)
    if isinstance(instructions, str):
        messages.append({"role": "system", "content": instructions})
    elif instructions is not None:
        problems.append(Problem("must be a text", "instructions"))
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list):
        for number, item in enumerate(given):
            if len(problems) > MOST_FINDINGS:
                break
            _add(item, f"input.{number}", messages, problems)
    else:
        problems.append(Problem("missing" if given is None else "must be a text or a list", "input"))
    return messages or [{"role": "user", "content": ""}]


def _add(item: Any, path: str, messages: list[Any], problems: list[Problem]) -> None:
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind == "message" and "role" in item:
        messages.append(
            {"role": item["role"], "content": _text(item.get("content"), f"{path}.content", problems)}
        )
    elif kind == "function_call":
        call = {
            "id": item.get("call_id"),
            "type": "function",
            "function": {"name": item.get("name"), "arguments": item.get("arguments")},
        }
        for name in ("call_id", "name", "arguments"):
            if not isinstance(item.get(name), str):
                problems.append(Problem("must be a text", f"{path}.{name}"))
        last = messages[-1] if messages else {}
        if last.get("role") == "assistant":  # one turn: its text, and its calls
            last.setdefault("tool_calls", []).append(call)
        else:
            messages.append({"role": "assistant", "tool_calls": [call]})
    elif kind == "function_call_output":
        if not isinstance(item.get("call_id"), str):
            problems.append(Problem("must be a text", f"{path}.call_id"))
        output = _text(item.get("output"), f"{path}.output", problems)
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
    elif kind != "reasoning":  # of another model: this one reads the text that came of it
        shown = f", not {kind}" if isinstance(kind, str) and kind != "message" else ""
        reason = f"must be a message with a role, a function_call or a function_call_output{shown}"
        problems.append(Problem(reason, path))


def _text(content: Any, path: str, problems: list[Problem]) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        problems.append(Problem("must be a text or a list of parts of text", path))
        return ""
    texts = []
    for number, part in enumerate(content):
        if len(problems) > MOST_FINDINGS:
            break
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if kind in TEXT_PARTS else None
        if isinstance(text, str):
            texts.append(text)
        else:
            shown = f", not {kind}" if isinstance(kind, str) and kind not in TEXT_PARTS else ""
            problems.append(Problem(f"must be a part of text{shown}", f"{path}.{number}"))
    return "".join(texts)


# Options


def _format(chat: dict[str, Any], problems: list[Problem]) -> None:
    text = chat.pop("text", None)
    if text is None:
        return
    form = text.get("format") if isinstance(text, dict) else text
    if form is None:
        return
    if not isinstance(form, dict):
        problems.append(Problem("must be a JSON object", "text" if form is text else "text.format"))
    elif form.get("type") == "json_schema":
        inner = {name: form[name] for name in SCHEMA if form.get(name) is not None}
        chat["response_format"] = {"type": "json_schema", "json_schema": inner}
    else:
        chat["response_format"] = form


def _tool(tool: Any, path: str, problems: list[Problem]) -> Any:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        kind = tool.get("type") if isinstance(tool, dict) else None
        shown = f", not {kind}" if isinstance(kind, str) else ""
        problems.append(Problem(f"only functions can be called{shown}", f"{path}.type"))
        return {"type": "function", "function": {"name": "-"}}
    return {
        "type": "function",
        "function": {name: tool[name] for name in FUNCTION if tool.get(name) is not None},
    }


def _tool_choice(choice: dict[str, Any]) -> Any:
    if choice.get("type") == "allowed_tools":
        listed = choice.get("tools")
        tools = [_named(tool) for tool in listed] if isinstance(listed, list) else listed
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": tools}}
    return _named(choice)


def _named(choice: Any) -> Any:
    if isinstance(choice, dict) and "name" in choice:
        return {"type": choice.get("type"), "function": {"name": choice["name"]}}
    return choice
