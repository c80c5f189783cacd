"""JSON schemas as llguidance holds them: which texts each keyword takes, and which it does not."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from engine import response_grammar
from engine.llama.model import Model, default_model_path
from tests.engine.helpers.answers import Writer, grammar_of

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


def test_the_whole_range_and_nothing_else(writer: Writer) -> None:
    for low, high in ((0, 0), (-3, 12), (7, 112), (95, 105), (-1010, -98), (98, 101)):
        grammar = grammar_of({"type": "integer", "minimum": low, "maximum": high})
        for n in range(low - 30, high + 30):
            assert writer.takes(grammar, str(n)) == (low <= n <= high), (n, low, high)
