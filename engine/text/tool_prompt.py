"""Tools in a chat whose template has no place for them: a description of them, and calls, as plain text.

The format is that of Hermes and Qwen, which many models were trained on: <tool_call>{JSON}</tool_call>.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Turn = dict[str, Any]

BEGIN = "# Tools"
DESCRIPTION = """\
# Tools

You may call one or more functions to assist with the user query. They are, as JSON:
<tools>
{tools}
</tools>

For each call, return its name and arguments as JSON:
<tool_call>
{{"name": "<function name>", "arguments": <JSON object>}}
</tool_call>

Results come in <tool_response> tags. Where no call is needed, answer as usual."""


def describe(tools: Sequence[Mapping[str, Any]]) -> str:
    return DESCRIPTION.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))


def with_description(turns: Sequence[Turn], text: str, role: str) -> list[Turn]:
    """The turns, with text in the first one of this role: system, which is added if need be, or user."""
    index = next((number for number, turn in enumerate(turns) if turn["role"] == role), None)
    if index is None:
        return [{"role": role, "content": text}, *turns]
    first = turns[index]
    parts = (first["content"], text) if role == "system" else (text, first["content"])
    joined = "\n\n".join(part for part in parts if part)
    return [*turns[:index], {**first, "content": joined}, *turns[index + 1 :]]


def as_text(turns: Sequence[Turn]) -> list[Turn]:
    """Calls as the assistant's text, and results as the user's, those that follow one another in one turn."""
    written: list[Turn] = []
    after_result = False
    for turn in turns:
        if turn["role"] == "tool":
            text = f"<tool_response>\n{turn.get('content') or ''}\n</tool_response>"
            if after_result:
                written[-1]["content"] += f"\n{text}"
            else:
                written.append({"role": "user", "content": text})
            after_result = True
            continue
        after_result = False
        calls = [_call(call["function"]) for call in turn.get("tool_calls") or ()]
        others = {name: value for name, value in turn.items() if name != "tool_calls"}
        content = "\n".join(part for part in (turn.get("content"), *calls) if part)
        written.append({**others, "content": content})
    return written


def _call(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
