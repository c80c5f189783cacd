"""Tool calls: a grammar that holds each call to the name and the parameters of a tool.

A call is written as <tool_call>, a line of JSON with name and arguments, and </tool_call>, each on a line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engine.base.errors import RequestRefused
from engine.sampling.grammar import MAX_SCHEMA, json_rule, response_grammar

MOST_CALLS = 128  # in one answer, as many as a message may have
OPEN, CLOSE = "<tool_call>", "</tool_call>"
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
KINDS = ("type", "$ref", "anyOf", "oneOf", "allOf")  # keywords that say what the arguments are
# A text ends where it calls: the lexeme is lazy, so that no other text can hold OPEN.
TEXT = f'text: TEXT\nto_call[lazy]: TEXT "{OPEN}"\nTEXT: /(.|\\n)*/'


def answer_grammar(
    response_format: Mapping[str, Any] | None,
    tools: Sequence[Mapping[str, Any]] = (),
    tool_choice: str | Mapping[str, Any] = "auto",
    parallel: bool = True,
) -> str | None:
    """A grammar for the answer: text or JSON as response_format asks, or calls, as tool_choice allows.

    tools and tool_choice are as in OpenAI's chat completions; a named tool is called once. parallel: whether
    several calls may be made. None where any text will do. Raises RequestRefused.
    """
    if not tools:
        return response_grammar(response_format)
    named = None if isinstance(tool_choice, str) else tool_choice["function"]["name"]
    functions = [tool["function"] for tool in tools if named in (None, tool["function"]["name"])]
    more = f' ("\\n" "{OPEN}" call){{0,{MOST_CALLS - 1}}}' if parallel and named is None else ""
    if tool_choice != "auto":
        start = f'start: "{OPEN}" call{more}'
    elif (form := response_grammar(response_format)) is not None:
        start = f'start: answer | "{OPEN}" call{more}\nanswer: {form.removeprefix("start: ")}'
    else:
        start = f"start: text | to_call call{more}\n{TEXT}"
    each = " | ".join(f"tool_{number}" for number in range(len(functions)))
    rules = [start, f'call: "\\n" ({each}) "\\n{CLOSE}"']
    for number, function in enumerate(functions):
        begin = json.dumps(f'{{"name": {json.dumps(function["name"])}, "arguments": ')
        rules.append(f'tool_{number}: {begin} arguments_{number} "}}"')
        rules.append(f"arguments_{number}: {_arguments(function)}")
    grammar = "\n".join(rules)
    if len(grammar) > MAX_SCHEMA:
        message = f"tools: their schemas have more than {MAX_SCHEMA} characters"
        raise RequestRefused(message, param="tools", code="invalid_schema")
    return grammar


def _arguments(function: Mapping[str, Any]) -> str:
    schema = function.get("parameters")
    if schema is None:
        schema = NO_PARAMETERS
    elif not any(kind in schema for kind in KINDS):
        schema = {**schema, "type": "object"}
    return json_rule(schema, function.get("strict") is True, "tools")
