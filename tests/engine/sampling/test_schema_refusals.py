"""Response formats and JSON schemas that are refused, and why."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest

from engine import RequestRefused, response_grammar
from engine.sampling.grammar import MAX_SCHEMA
from tests.engine.helpers.answers import Writer, grammar_of, nested, schema_format

pytestmark = pytest.mark.slow


def test_any_text_needs_no_grammar() -> None:
    assert response_grammar(None) is response_grammar({"type": "text"}) is None


@pytest.mark.parametrize(
    "response_format",
    [
        {},
        {"type": "xml"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        schema_format(3),
        schema_format(False),
    ],
)
def test_what_is_no_response_format_is_refused(response_format: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused) as refused:
        response_grammar(response_format)
    assert (refused.value.param, refused.value.code) == ("response_format", "invalid_request")


REFUSED: dict[str, tuple[Any, str]] = {
    "a type that is none": ({"type": "float"}, "Invalid type: float"),
    "a type that is no name": ({"type": {}}, "type must be"),
    "the web": ({"$ref": "https://example.com/schema.json"}, "does not fetch"),
    "the web, deep inside": ({"properties": {"a": {"items": {"$ref": "http://localhost:1/x"}}}}, "not fetch"),
    "a file": ({"$ref": "file:///etc/passwd"}, "does not fetch"),
    "a reference that is no text": ({"$ref": {"a": 1}}, r"\$ref must be a string"),
    "a reference to nothing": ({"$ref": "#/$defs/missing"}, "does not exist"),
    "a reference to itself": ({"$ref": "#"}, "nothing satisfies"),
    "references in a circle": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        "nothing satisfies",
    ),
    "all of itself": ({"allOf": [{"$ref": "#"}]}, "nothing satisfies"),
    "an empty enum": ({"enum": []}, "Unsatisfiable"),
    "an empty choice": ({"anyOf": []}, "Unsatisfiable"),
    "an enum of another type": ({"type": "string", "enum": [1]}, "Unsatisfiable"),
    "half a character": ({"const": "\ud83d"}, "hex escape"),
    "half a character in a name": ({"properties": {"\ud83d": {}}}, "hex escape"),
    "a value that no double has": ({"enum": ["a", 9007199254740993]}, "rounded, .* 9007199254740993"),
    "such a value, deep inside": ({"properties": {"const": {"const": {"a": [2**64 + 1]}}}}, "rounded"),
    "a step that no double is": ({"type": "integer", "multipleOf": 2**63 - 1}, "rounded"),
    "a value beyond all doubles": ({"const": 10**400}, "rounded"),
    "a value beyond 64 bits with more digits than a double is written with": ({"enum": [2**63]}, "rounded"),
    "the least of 64 bits": ({"const": -(2**63)}, "rounded"),
    "a whole double with such digits": ({"const": 1.2345678901234566e17}, "rounded"),
    "bounds with no double between": (
        {"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 1},
        "greater than maximum",
    ),
    "a least integer of more than 64 bits": ({"type": "integer", "minimum": 2**63}, "64 bits: 92233"),
    "the next double of which has more than 64 bits": (
        {"type": "integer", "exclusiveMinimum": 2**63 - 1, "maximum": 2**64},
        "64 bits: 92233",
    ),
    "a largest integer of more than 64 bits": ({"type": "integer", "maximum": -1e19}, "64 bits"),
    "no number between": ({"type": "integer", "minimum": 5, "maximum": 3}, "greater than maximum"),
    "a bound that is none": ({"type": "integer", "minimum": "1"}, "Expected f64"),
    "a bound that is true": ({"type": "integer", "minimum": True}, "Expected f64"),
    "lengths that cross": ({"type": "string", "minLength": 5, "maxLength": 3}, "greater than maxLength"),
    "a length that is none": ({"type": "string", "maxLength": -1}, "positive integer"),
    "counts that cross": ({"type": "array", "minItems": 3, "maxItems": 2}, "greater than maxItems"),
    "properties that are none": ({"allOf": [{"properties": 5}]}, "properties must be an object"),
    "required that is no list": ({"properties": {"a": {}}, "required": "a"}, "Expected array"),
    "a pattern that is none": ({"type": "string", "pattern": "(a"}, "unclosed group"),
    "a pattern that looks around": ({"type": "string", "pattern": "(?=a)"}, "look-around"),
    "a number beyond numbers": ({"type": "integer", "maximum": 10**400}, "out of range"),
    "a number beyond Python": ({"type": "integer", "maximum": 10**5000}, "digits"),
    "no number": ({"type": "number", "maximum": math.nan}, "expected value"),
    "nested too deeply": (nested(200), "recursion limit"),
    "nested without end": (nested(100_000), "nested too deeply"),
    "too long": ({"enum": ["a" * i for i in range(1000)]}, f"more than {MAX_SCHEMA} characters"),
}
HELD_ONLY_BY_STRICT: dict[str, Any] = {
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "contains": {"type": "array", "contains": {"const": 1}},
    "oneOf": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "not": {"not": {"type": "null"}},
    "if": {"if": {}, "then": {}},
    "haiku": {"type": "string", "format": "haiku"},
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("strict", [True, False])
def test_what_no_grammar_can_be_made_of_is_refused(
    writer: Writer, case: tuple[Any, str], strict: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    schema, why = case
    with pytest.raises(RequestRefused, match=why) as refused:
        writer.begin(grammar_of(schema, strict))
    assert (refused.value.param, refused.value.code) == ("response_format", "invalid_schema")
    assert refused.value.message.startswith("response_format: ")
    assert "\n" not in refused.value.message
    assert len(refused.value.message) < 400
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("key", HELD_ONLY_BY_STRICT)
def test_a_keyword_that_no_grammar_holds_is_refused_if_strict_and_else_left_out(
    writer: Writer, key: str
) -> None:
    schema = HELD_ONLY_BY_STRICT[key]
    with pytest.raises(RequestRefused, match=key) as refused:
        writer.begin(grammar_of(schema))
    assert refused.value.code == "invalid_schema"
    text = writer.write(grammar_of(schema, strict=False), random.Random(1))
    assert text is not None
    json.loads(text)


def test_a_schema_cannot_change_how_json_is_written(writer: Writer) -> None:
    options = {"item_separator": ";", "whitespace_pattern": "x+", "lenient": True}
    grammar = grammar_of({"type": "array", "items": {"type": "null"}, "x-guidance": options})
    assert writer.takes(grammar, "[null, null]")
    assert not writer.takes(grammar, "[null;null]")
    assert not writer.takes(grammar, "[xnull]")
