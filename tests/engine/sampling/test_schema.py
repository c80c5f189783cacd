"""JSON schemas as llguidance holds them: what may be written, what is refused, and that all else is valid."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import EngineError, RequestRefused, response_grammar
from engine.llama.model import Model, default_model_path
from engine.sampling.grammar import MAX_SCHEMA
from tests.engine.helpers.answers import FIRST_BYTE, Writer, grammar_of, schema_format

pytestmark = pytest.mark.slow

CLOSED = {"additionalProperties": False}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    **CLOSED,
}
LIST = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["value", "next"],
    **CLOSED,
}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


Case = tuple[Any, list[str], list[str]]

# (schema, texts it takes, texts it does not)
CASES: dict[str, Case] = {
    "object": (
        PERSON,
        ['{"name": "Bob", "age": 3}', '{"name": "", "age": -12}'],
        [
            '{"age": 3, "name": "Bob"}',
            '{"name": "Bob"}',
            '{"name": "Bob", "age": "3"}',
            "[]",
            ' {"name":"B","age":1}',
        ],
    ),
    "optional properties": (
        {"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}, "required": ["b"]},
        ['{"b": 2}', '{"a": 1, "b": 2}', '{"b": 2, "c": 3}', '{"a": 1, "b": 2, "c": 3}'],
        [
            "{}",
            '{"a": 1}',
            '{"b": 2, }',
            '{, "b": 2}',
            '{"a": 1, "c": 3}',
            '{"b": 2, "a": 1}',
            '{"b": 2, "d": 4}',
        ],
    ),
    "no property required": (
        {"properties": {"a": {"const": 1}, "b": {"const": 2}}},
        ["{}", '{"a": 1}', '{"b": 2}', '{"a": 1, "b": 2}'],
        ['{"a": 1"b": 2}', '{"a": 1, }'],
    ),
    "a required property that is not declared": (
        {"required": ["x"], "additionalProperties": {"type": "null"}},
        ['{"x": null}'],
        ["{}", '{"x": 1}'],
    ),
    "a map": (
        {"type": "object", "additionalProperties": {"type": "boolean"}},
        ["{}", '{"a": true}', '{"a": true, "b": false}'],
        ['{"a": 1}', "{true}"],
    ),
    "an empty object": ({"type": "object", "additionalProperties": False}, ["{}"], ['{"a": 1}']),
    "any object": ({"type": "object"}, ["{}", '{"a": [{"b": null}]}'], ["[]", "1"]),
    "names that need escapes": (
        {"properties": {'a"b\\c\nd\té😀': {"const": 1}}, "required": ['a"b\\c\nd\té😀']},
        [json.dumps({'a"b\\c\nd\té😀': 1}, ensure_ascii=False)],
        ['{"a": 1}'],
    ),
    "an array": (
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
        ["[1]", "[1, 2]", "[1, 2, 3]"],
        ["[]", "[1, 2, 3, 4]", "[1, ]", '["1"]'],
    ),
    "an array of no item": ({"type": "array", "items": {"type": "null"}, "maxItems": 0}, ["[]"], ["[null]"]),
    "any array": ({"type": "array"}, ["[]", '[1, "a", {}]'], ["{}"]),
    "at least two items": (
        {"items": {"type": "null"}, "minItems": 2},
        ["[null, null]", "[null, null, null]"],
        ["[]", "[null]"],
    ),
    "a tuple": (
        {"type": "array", "prefixItems": [{"const": 1}, {"const": "x"}]},
        ['[1, "x"]', "[1]", '[1, "x", 2]'],
        ['["x", 1]', "[2]"],
    ),
    "a tuple and more": (
        {"prefixItems": [{"const": 1}], "items": {"const": 2}, "maxItems": 3},
        ["[]", "[1]", "[1, 2]", "[1, 2, 2]"],
        ["[2]", "[1, 2, 2, 2]", "[1, 1]"],
    ),
    "a tuple of before 2020": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "array",
            "items": [{"const": 1}, {"const": 2}],
            "additionalItems": False,
            "minItems": 2,
        },
        ["[1, 2]"],
        ["[1]", "[1, 2, 3]", "[2, 1]"],
    ),
    "no further items": ({"type": "array", "items": False}, ["[]"], ["[1]"]),
    "strings": (
        {"type": "string"},
        ['""', '"é😀"', r'"\"\\\b\f\n\r\t\u0001"'],
        ['"a\nb"', '"\t"', '"\x7f"', '"a', r'"\x"', r'"\ud83d"', r'"\ude00"', r'"\u12"', '"a"b"'],
    ),
    "lengths": (
        {"type": "string", "minLength": 2, "maxLength": 3},
        ['"ab"', '"abc"', '"é😀"', r'"é\n"'],
        ['"a"', '"abcd"', r'"\ud83d\ude00"'],
    ),
    "a date": ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2024-13-01"', '"24-01-01"']),
    "a time": (
        {"format": "time", "type": "string"},
        ['"23:59:59Z"', '"00:00:00.123+02:00"'],
        ['"24:00:00Z"'],
    ),
    "a date and time": (
        {"type": "string", "format": "date-time"},
        ['"2024-02-29T01:02:03Z"'],
        ['"2024-02-29"'],
    ),
    "a UUID": (
        {"type": "string", "format": "uuid"},
        ['"123e4567-e89b-12d3-a456-426614174000"'],
        ['"123e4567e89b12d3a456426614174000"'],
    ),
    "an e-mail address": ({"type": "string", "format": "email"}, ['"a.b@c.de"'], ['"a b"', '"@"']),
    "integers": (
        {"type": "integer"},
        ["0", "-1", "9999999999999999"],
        ["01", "1.5", "1e", "+1", "-"],
    ),
    "numbers": (
        {"type": "number"},
        ["0", "-0.5", "1e3", "1.5E-12"],
        ["01", ".5", "1.", "1e", "NaN", "Infinity"],
    ),
    "integers of a range": (
        {"type": "integer", "minimum": -12, "maximum": 105},
        ["-12", "-1", "0", "9", "10", "99", "100", "105"],
        ["-13", "106", "1000", "-100", "00", "007"],
    ),
    "exclusive ends": (
        {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3.5},
        ["1", "3"],
        ["0", "4", "-1"],
    ),
    "numbers of a range": (
        {"type": "number", "minimum": 0, "maximum": 1},
        ["0", "1", "0.25"],
        ["-0.1", "1.1", "2", "1e1"],
    ),
    "negative numbers": (
        {"type": "number", "minimum": -2, "maximum": -1},
        ["-1", "-1.5", "-2"],
        ["-0.9", "-2.1", "0", "1"],
    ),
    "booleans": ({"type": "boolean"}, ["true", "false"], ["True", "1"]),
    "null": ({"type": "null"}, ["null"], ["nil"]),
    "anything": (
        {},
        ["1", '"a"', "[]", "{}", "null", "true"],
        ["", "tru", "[1", "nul"],
    ),
    "several types": (
        {"type": ["integer", "string"], "maximum": 5, "minLength": 1},
        ["5", '"a"'],
        ["6", '""', "null"],
    ),
    "an enum": (
        {"enum": ["red", "reddish", 'say "hi"', "a\\b", "é\n", 1.5, None, True, {"a": [1]}]},
        ['"red"', '"reddish"', r'"say \"hi\""', r'"a\\b"', r'"é\n"', "1.5", "null", "true", '{"a": [1]}'],
        ['"re"', '"redd"', '"blue"', "1", '"reddis"'],
    ),
    "an enum of a type": ({"type": ["string", "null"], "enum": ["a", None, 3]}, ['"a"', "null"], ["3"]),
    "a constant": ({"const": "a\tb"}, [r'"a\tb"'], ['"a\tb"', '"a"']),
    "a choice": (
        {"anyOf": [{"type": "integer"}, PERSON, {"type": "null"}]},
        ["3", "null", '{"name": "x", "age": 1}'],
        ['"3"', "{}"],
    ),
    "a choice beside what all share": (
        {
            "type": "object",
            "properties": {"a": {"const": 1}, "b": {"const": 2}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        ['{"a": 1}', '{"b": 2}', '{"a": 1, "b": 2}'],
        ["{}"],
    ),
    "all of several": (
        {
            "allOf": [
                {"properties": {"a": {"const": 1}}, "required": ["a"]},
                {"properties": {"b": {"const": 2}}},
            ]
        },
        ['{"a": 1}', '{"a": 1, "b": 2}'],
        ["{}", '{"b": 2}'],
    ),
    "a reference": (
        {
            "properties": {"p": {"$ref": "#/$defs/a~1b%20c"}},
            "required": ["p"],
            "$defs": {"a/b c": {"const": 7}},
        },
        ['{"p": 7}'],
        ['{"p": 8}'],
    ),
    "a reference with remarks": (
        {"$ref": "#/definitions/x", "description": "an x", "definitions": {"x": {"type": "null"}}},
        ["null"],
        ["1"],
    ),
    "a reference and more": (
        {"$ref": "#/$defs/x", "required": ["a"], "$defs": {"x": {"properties": {"a": {"const": 1}}}}},
        ['{"a": 1}'],
        ["{}"],
    ),
    "definitions of one name": (
        {
            "prefixItems": [
                {"$ref": "#/$defs/x/item"},
                {"$ref": "#/$defs/y/item"},
                {"$ref": "#/$defs/string"},
            ],
            "$defs": {"x": {"item": {"const": 1}}, "y": {"item": {"const": 2}}, "string": {"const": 3}},
        },
        ["[1, 2, 3]"],
        ["[1, 1, 3]", "[2, 2, 3]", '[1, 2, "a"]'],
    ),
    "a list by reference to itself": (
        LIST,
        ['{"value": 1, "next": null}', '{"value": 1, "next": {"value": 2, "next": null}}'],
        ['{"value": 1}', '{"value": 1, "next": {}}'],
    ),
    "booleans as schemas": ({"type": "array", "items": True}, ['[1, "a"]'], ["{}"]),
    "a pattern": (
        {"type": "string", "pattern": "^[A-Z]{2}-\\d+$"},
        ['"AB-1"'],
        ['"A-1"', '"AB-"', '"xAB-1"'],
    ),
    "properties by pattern": (
        {
            "type": "object",
            "patternProperties": {"^n_": {"type": "integer"}, "^s_": {"type": "string"}},
            "additionalProperties": False,
        },
        ["{}", '{"n_a": 1, "s_b": "x"}'],
        ['{"n_a": "x"}', '{"a": 1}'],
    ),
    "at least one property": (
        {"type": "object", "additionalProperties": {"type": "null"}, "minProperties": 1, "maxProperties": 2},
        ['{"a": null}', '{"a": null, "b": null}'],
        ["{}", '{"a": null, "b": null, "c": null}'],
    ),
    "multiples": ({"type": "integer", "multipleOf": 7}, ["0", "49", "-7"], ["1", "50"]),
    "a fraction at least": ({"type": "number", "minimum": 0.5}, ["0.5", "17.25"], ["0.4", "-1"]),
    "one of several that exclude each other": (
        {
            "oneOf": [
                {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]},
                {
                    "type": "object",
                    "properties": {"k": {"const": "b"}, "n": {"const": 1}},
                    "required": ["k", "n"],
                },
            ]
        },
        ['{"k": "a"}', '{"k": "b", "n": 1}'],
        ['{"k": "b"}', '{"k": "c"}'],
    ),
    "a pattern and a length": (
        {"type": "string", "pattern": "^a+$", "minLength": 3, "maxLength": 4},
        ['"aaa"', '"aaaa"'],
        ['"aa"', '"aaaaa"', '"aab"'],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_a_schema_takes(writer: Writer, case: Case) -> None:
    schema, valid, invalid = case
    grammar = grammar_of(schema)
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema)
    for text in valid:
        validator.validate(json.loads(text))
        assert writer.takes(grammar, text), text
    for text in invalid:
        assert not writer.takes(grammar, text), text


def test_the_tokens_of_the_default_model_are_taken_alike() -> None:
    writer = Writer(Model(default_model_path()))
    for schema, valid, invalid in CASES.values():
        grammar = grammar_of(schema)
        assert all(writer.takes_tokens(grammar, text) for text in valid), schema
        assert not any(writer.takes_tokens(grammar, text) for text in invalid), schema


def test_a_json_object_is_any_object(writer: Writer) -> None:
    grammar = response_grammar({"type": "json_object"})
    assert grammar
    assert writer.takes(grammar, '{"a": [1, {"b": null}]}')
    assert writer.takes(grammar, "{}")
    for text in ("[]", "1", '"a"', "null", "", '{"a"}', '{"a": 1}}'):
        assert not writer.takes(grammar, text), text


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1,2], "b": {}}',
        '{"a":[1, 2], "b": {}}',
        '{"a": [1, 2],"b": {}}',
        '{"a": [1, 2], "b" : {}}',
        '{ "a": [1, 2], "b": {}}',
        '{"a": [ 1, 2], "b": {}}',
        '{"a": [1, 2 ], "b": {}}',
        '{"a": [1, 2], "b": { }}',
        '{"a": [1,  2], "b": {}}',
        '{"a": [1,\n2], "b": {}}',
        '{"a": [1, 2], "b": {}} ',
        '{"a": [1, 2], "b": {}}\n',
    ],
)
def test_whitespace_has_one_form(writer: Writer, text: str) -> None:
    """That of json.dumps, in schemas and in any JSON object."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {"type": "object"}},
    }
    for grammar in (grammar_of(schema), grammar_of({}), response_grammar({"type": "json_object"})):
        assert grammar
        assert writer.takes(grammar, json.dumps(json.loads(text)))
        assert not writer.takes(grammar, text)


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


def test_the_whole_range_and_nothing_else(writer: Writer) -> None:
    for low, high in ((0, 0), (-3, 12), (7, 112), (95, 105), (-1010, -98), (98, 101)):
        grammar = grammar_of({"type": "integer", "minimum": low, "maximum": high})
        for n in range(low - 30, high + 30):
            assert writer.takes(grammar, str(n)) == (low <= n <= high), (n, low, high)


# Refusals

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
    "no number between": ({"type": "integer", "minimum": 5, "maximum": 3}, "greater than maximum"),
    "a bound that is none": ({"type": "integer", "minimum": "1"}, "Expected f64"),
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


def in_a_chain(length: int, combine: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    defs = {f"d{i}": combine({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{length}": {"type": "null"}}}


def doubling(combine: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Each of 60 definitions has the next one twice."""
    defs = {f"d{i}": combine({"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}) for i in range(60)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, "d60": {"type": "object"}}}


HUGE: dict[str, Any] = {
    "nested": nested(100),
    "many properties": {
        "properties": {f"p{i}": {"type": "string"} for i in range(5000)},
        "required": [f"p{i}" for i in range(5000)],
    },
    "many optional properties": {"properties": {f"p{i}": {"type": "string"} for i in range(600)}},
    "many values": {"enum": [f"value {i * 7919 % 20_000}" for i in range(14_000)]},
    "many values and a pattern": {"enum": [f"v{i}" for i in range(9000)], "pattern": "^v.*a?.{0,30}$"},
    "many choices": {"anyOf": [{"prefixItems": [{"const": i}]} for i in range(1000)]},
    "choices of choices": doubling(lambda a, b: {"anyOf": [a, {"anyOf": [b, {"type": "null"}]}]}),
    "all of all": doubling(lambda a, b: {"allOf": [a, b]}),
    "tuples of tuples": doubling(lambda a, b: {"prefixItems": [a, b]}),
    "choices that begin alike, inside each other": doubling(
        lambda a, b: {"anyOf": [{"items": a}, {"items": b, "maxItems": 3}, {"items": b, "maxItems": 4}]}
    ),
    "such choices by reference to themselves": {
        "anyOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}, "maxItems": 2}, {"type": "null"}]
    },
    "arrays alike": {
        "anyOf": [
            {"type": "array", "items": {"type": "string", "pattern": "^.{0,300}$"}, "maxItems": i + 1}
            for i in range(40)
        ]
    },
    "a chain of references": in_a_chain(6000, lambda ref: ref),
    "a chain of choices": in_a_chain(3000, lambda ref: {"anyOf": [ref, {"type": "null"}]}),
    "a chain of arrays": in_a_chain(4000, lambda ref: {"type": "array", "items": ref}),
    "a chain of objects": in_a_chain(3000, lambda ref: {"properties": {"a": ref}, "required": ["a"]}),
    "all of two trees": {
        "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        "$defs": {name: {"properties": {"x": {"$ref": f"#/$defs/{name}"}}} for name in "ab"},
    },
    "many counts": {"prefixItems": [{"type": "string", "maxLength": 1500 + i} for i in range(100)]},
    "counts of counts": {"type": "string", "pattern": "^(((a{1,900}){1,900}){1,900}){1,900}$"},
    "counts after counts": {"type": "string", "pattern": "^.{0,900}.{0,900}.{0,900}$"},
    "counts of what may be empty": {"type": "string", "pattern": "^(((a?){0,900}){0,900}){0,900}$"},
    "what may be empty 900 times": {"type": "string", "pattern": "^" + "a?" * 900 + "$"},
    "what came long ago": {"type": "string", "pattern": "^.*a.{30}$"},
    "a long pattern": {"type": "string", "pattern": "^" + "(a|b)" * 3000 + "$"},
    "a deep pattern": {"type": "string", "pattern": "^" + "(" * 3000 + "a" + ")" * 3000 + "$"},
    "large multiples": {"anyOf": [{"type": "integer", "multipleOf": 99_991 + i} for i in range(30)]},
}


def failure(run: Callable[[], object]) -> EngineError | None:
    try:
        run()
    except EngineError as error:
        return error
    return None


@pytest.mark.parametrize("schema", HUGE.values(), ids=HUGE)
def test_a_huge_schema_is_held_or_refused(writer: Writer, schema: Any) -> None:
    """Within the limits of each step: without them the test would not end."""
    error = failure(lambda: [writer.write(grammar_of(schema), random.Random(seed)) for seed in range(3)])
    assert error is None or error.code in ("invalid_schema", "schema_too_complex", "grammar_too_complex")
    assert error is None or len(error.message) < 400


@pytest.mark.parametrize("name", ["a chain of references", "many values", "arrays alike"])
def test_large_but_plain_schemas_are_held(writer: Writer, name: str) -> None:
    text = writer.write(grammar_of(HUGE[name]), random.Random(2), most=1000)
    assert text is not None
    json.loads(text)


def test_a_request_does_not_use_up_the_limits_of_another(writer: Writer) -> None:
    """Matchers of one grammar that shared their states would after some answers allow no further one."""
    grammar = grammar_of({"type": "string", "pattern": "^.*a.{12}$"})
    rng = random.Random(4)
    for _ in range(30):
        constraint = writer.begin(grammar)
        for byte in ('"' + "".join(rng.choice("ab") for _ in range(150))).encode():
            assert constraint.allowed()[FIRST_BYTE + byte]
            constraint.accept(FIRST_BYTE + byte)


KEYWORDS = (
    *("type", "properties", "required", "items", "prefixItems", "anyOf", "allOf", "oneOf", "not", "enum"),
    *("const", "$ref", "$defs", "pattern", "format", "minimum", "exclusiveMaximum", "multipleOf"),
    *(
        "minLength",
        "maxItems",
        "additionalProperties",
        "patternProperties",
        "minProperties",
        "$schema",
        "$id",
    ),
)
WORDS = (
    "string",
    "object",
    "array",
    "integer",
    "date",
    "#",
    "#/$defs/a",
    "^a+$",
    "(",
    "",
    "\ud800",
    "http://x/",
)
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(WORDS)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from((*KEYWORDS, "a")), inner, max_size=4),
    ),
    max_leaves=15,
)


@given(schema=st.dictionaries(st.sampled_from(KEYWORDS), anything, max_size=5), strict=st.booleans())
@settings(max_examples=500, deadline=None)
def test_whatever_is_sent_as_a_schema_is_held_or_refused(writer: Writer, schema: Any, strict: bool) -> None:
    error = failure(lambda: writer.begin(grammar_of(schema, strict)).allowed())
    if error is not None:
        assert isinstance(error, RequestRefused)
        assert (error.param, error.code) == ("response_format", "invalid_schema")
        assert "\n" not in error.message


# Any schema

texts = st.sampled_from(["a", "ab", 'q"x', "n\nl", "\\b", "é😀", "\u2028", "", "*", "x y", "0"])
scalars = st.one_of(
    st.just({"type": "string"}),
    st.builds(
        lambda a, b: {"type": "string", "minLength": a, "maxLength": a + b},
        st.integers(0, 4),
        st.integers(0, 4),
    ),
    st.builds(
        lambda a, b: {"type": "integer", "minimum": a, "maximum": a + b},
        st.integers(-1200, 1200),
        st.integers(0, 1500),
    ),
    st.builds(lambda a: {"type": "integer", "exclusiveMinimum": a}, st.floats(-50, 50)),
    st.builds(
        lambda a, b: {"type": "number", "minimum": a, "maximum": a + b},
        st.integers(-50, 50),
        st.integers(0, 99),
    ),
    st.builds(lambda a: {"type": "number", "maximum": a}, st.integers(-500, 500)),
    st.sampled_from([{"type": t} for t in ("integer", "number", "boolean", "null", "object", "array")]),
    st.builds(
        lambda values: {"enum": values}, st.lists(st.one_of(texts, st.integers(), st.none()), min_size=1)
    ),
    st.builds(
        lambda value: {"const": value}, st.one_of(texts, st.lists(texts), st.dictionaries(texts, texts))
    ),
    st.sampled_from(
        [{"type": "string", "format": f} for f in ("date", "time", "date-time", "uuid", "email")]
    ),
    st.just({"type": ["string", "null", "integer"], "minLength": 2, "maximum": 7}),
    st.just({"$ref": "#/$defs/node"}),
)


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def an_object(properties: dict[str, Any], required: set[str], closed: bool) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": properties,
            "required": sorted(required if not closed else required & properties.keys()),
            **(CLOSED if closed else {}),
        }

    return st.one_of(
        st.builds(
            an_object, st.dictionaries(texts, inner, max_size=5), st.sets(texts, max_size=3), st.booleans()
        ),
        st.builds(lambda values: {"type": "object", "additionalProperties": values}, inner),
        st.builds(
            lambda item, a, b: {"type": "array", "items": item, "minItems": a, "maxItems": a + b},
            *(inner, st.integers(0, 3), st.integers(0, 3)),
        ),
        st.builds(lambda items: {"prefixItems": items}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda ways: {"anyOf": ways}, st.lists(inner, min_size=1, max_size=4)),
    )


NODE = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["next"],
}


@given(schema=st.recursive(scalars, larger, max_leaves=8), seed=st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_whatever_is_written_is_valid(writer: Writer, schema: Any, seed: int) -> None:
    whole = {**schema, "$defs": {"node": NODE}}
    text = writer.write(grammar_of(whole), random.Random(seed))
    if text is not None:
        jsonschema.validate(json.loads(text), whole, jsonschema.Draft202012Validator)
