"""Which calls of tools may be written, and what beside them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine import RequestRefused, answer_grammar
from engine.sampling.grammar import MAX_SCHEMA, Grammars
from tasks.schema.tool_calls import split
from tests.engine.helpers.answers import Writer, schema_format

REFERENCE = {"$ref": "#/$defs/city"}
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": REFERENCE, "days": {"type": "integer"}},
    "required": ["city"],
    "$defs": {"city": {"enum": ["Köln", "Paris"]}},
}


def tool(name: str, parameters: Any = None, **fields: Any) -> dict[str, Any]:
    given = {} if parameters is None else {"parameters": parameters}
    return {"type": "function", "function": {"name": name, **given, **fields}}


WEATHER, TIME, ANY = tool("weather", PARAMETERS), tool("time.now"), tool("any", {})
TOOLS = (WEATHER, TIME, ANY)


def call(name: str, arguments: Any) -> str:
    text = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{text}\n</tool_call>"


COLOGNE = call("weather", {"city": "Köln", "days": 2})
NOW = call("time.now", {})
NAMED = {"type": "function", "function": {"name": "weather"}}
OBJECT = {"type": "json_object"}

CASES: list[tuple[dict[str, Any], str, bool]] = [
    ({}, "Just text, in lines.\n\n<tools> & <tool_cal", True),
    ({}, "", True),
    ({}, COLOGNE, True),
    ({}, f"I look.\n{COLOGNE}\n{NOW}", True),
    ({}, call("any", {"x": [1]}), True),
    ({}, call("any", [1]), False),
    ({}, f"{COLOGNE} and", False),
    ({}, call("weather", {"city": "Bonn"}), False),
    ({}, call("weather", {"city": "Paris", "more": 1}), False),
    ({}, call("time.now", {"x": 1}), False),
    ({}, call("other", {}), False),
    ({}, "<tool_call>", False),
    ({"parallel": False}, COLOGNE, True),
    ({"parallel": False}, f"{COLOGNE}\n{NOW}", False),
    ({"tool_choice": "required"}, f"{COLOGNE}\n{NOW}", True),
    ({"tool_choice": "required"}, "text", False),
    ({"tool_choice": "required"}, f"text {NOW}", False),
    ({"tool_choice": "required", "parallel": False}, f"{NOW}\n{NOW}", False),
    ({"tool_choice": NAMED}, COLOGNE, True),
    ({"tool_choice": NAMED}, NOW, False),
    ({"tool_choice": NAMED}, f"{COLOGNE}\n{COLOGNE}", False),
    ({"response_format": OBJECT}, '{"a": 1}', True),
    ({"response_format": OBJECT}, f"{NOW}\n{COLOGNE}", True),
    ({"response_format": OBJECT}, "text", False),
    ({"response_format": schema_format({"type": "integer"})}, "12", True),
    ({"response_format": OBJECT, "tool_choice": "required"}, '{"a": 1}', False),
]


@pytest.mark.parametrize(("options", "text", "taken"), CASES, ids=lambda value: json.dumps(value)[:60])
def test_what_may_be_written(writer: Writer, options: dict[str, Any], text: str, taken: bool) -> None:
    asked = {"response_format": None, **options}
    grammar = answer_grammar(tools=TOOLS, **asked)
    assert grammar is not None
    assert writer.takes(grammar, text) is taken


def test_calls_are_read_as_they_are_written() -> None:
    assert split(f"I look.\n{COLOGNE}\n{NOW}") == [
        "I look.",
        {"name": "weather", "arguments": '{"city": "Köln", "days": 2}'},
        {"name": "time.now", "arguments": "{}"},
    ]


def test_a_line_of_dashes_is_no_number(writer: Writer) -> None:
    """Numbers without end are ended, in JSON."""
    grammar = answer_grammar(None, TOOLS)
    assert grammar is not None
    assert writer.takes(grammar, f"|{'-' * 100}|{'.' * 100}|{'e' * 100}|")
    constraint = writer.begin(grammar)
    for byte in b"-" * 100:
        assert constraint.allowed()[3 + byte]
        constraint.accept(3 + byte)


def test_without_tools_the_format_alone_counts() -> None:
    assert answer_grammar(None) is None
    assert answer_grammar(OBJECT, ()) == answer_grammar(OBJECT)


@pytest.mark.parametrize(
    "broken",
    [
        tool("f", {"type": "object", "properties": {"a": {"enum": [2**70 + 1]}}}),
        tool("f", {"type": "no such type"}),
        tool("f", {"const": "x" * MAX_SCHEMA}),
        tool("f", {"type": "object", "properties": {"a": {"not": {}}}}, strict=True),
    ],
    ids=["rounded", "no schema", "large", "strict"],
)
def test_refusals_name_the_tools(writer: Writer, broken: dict[str, Any]) -> None:
    grammars = Grammars(writer.model)
    try:
        with pytest.raises(RequestRefused, match=r"^tools: ") as refused:
            grammars.begin(answer_grammar(None, [WEATHER, broken]), field="tools")
    finally:
        grammars.close()
    assert (refused.value.param, refused.value.code) == ("tools", "invalid_schema")


def test_many_tools_with_long_schemas_are_refused() -> None:
    long = {"const": "x" * (MAX_SCHEMA // 2)}
    with pytest.raises(RequestRefused, match=r"^tools: their schemas") as refused:
        answer_grammar(None, [tool("a", long), tool("b", long)])
    assert refused.value.param == "tools"
