"""Grammars of JSON schemas: what they take, what they refuse, and that nothing invalid can be written."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import RequestRefused, response_grammar
from tests.engine.answers import Writer, grammar_of, schema_format

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
        ['{"name":"Bob","age":3}', '{ "name": "", "age": -12 }'],
        [
            '{"age":3,"name":"Bob"}',
            '{"name":"Bob"}',
            '{"name":"Bob","age":"3"}',
            "[]",
            ' {"name":"B","age":1}',
        ],
    ),
    "optional properties": (
        {"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}, "required": ["b"]},
        ['{"b":2}', '{"a":1,"b":2}', '{"b":2,"c":3}', '{"a":1, "b":2, "c":3}'],
        ["{}", '{"a":1}', '{"b":2,}', '{,"b":2}', '{"a":1,"c":3}', '{"b":2,"a":1}', '{"b":2,"d":4}'],
    ),
    "no property required": (
        {"properties": {"a": {"const": 1}, "b": {"const": 2}}},
        ["{}", "{ }", '{"a":1}', '{"b":2}', '{"a":1,"b":2}'],
        ['{"a":1"b":2}', '{"a":1,}'],
    ),
    "a required property that is not declared": (
        {"required": ["x"], "additionalProperties": {"type": "null"}},
        ['{"x":null}'],
        ["{}", '{"x":1}'],
    ),
    "a map": (
        {"type": "object", "additionalProperties": {"type": "boolean"}},
        ["{}", '{"a":true}', '{"a":true,"b":false}'],
        ['{"a":1}', "{true}"],
    ),
    "an empty object": ({"type": "object", "additionalProperties": False}, ["{}", "{ }"], ['{"a":1}']),
    "any object": ({"type": "object"}, ["{}", '{"a":[{"b":null}]}'], ["[]", "1"]),
    "names that need escapes": (
        {"properties": {'a"b\\c\nd\té😀': {"const": 1}}, "required": ['a"b\\c\nd\té😀']},
        [json.dumps({'a"b\\c\nd\té😀': 1}, ensure_ascii=False)],
        ['{"a":1}'],
    ),
    "an array": (
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
        ["[1]", "[1, 2]", "[ 1,2,3 ]"],
        ["[]", "[1,2,3,4]", "[1,]", '["1"]'],
    ),
    "an array of no item": ({"type": "array", "items": {"type": "null"}, "maxItems": 0}, ["[]"], ["[null]"]),
    "any array": ({"type": "array"}, ["[]", '[1,"a",{}]'], ["{}"]),
    "at least two items": (
        {"items": {"type": "null"}, "minItems": 2},
        ["[null,null]", "[null,null,null]"],
        ["[]", "[null]"],
    ),
    "a tuple": (
        {"type": "array", "prefixItems": [{"const": 1}, {"const": "x"}]},
        ['[1,"x"]'],
        ["[1]", '[1,"x",2]', '["x",1]'],
    ),
    "a tuple and more": (
        {"prefixItems": [{"const": 1}], "items": {"const": 2}, "maxItems": 3},
        ["[1]", "[1,2]", "[1,2,2]"],
        ["[]", "[2]", "[1,2,2,2]"],
    ),
    "a tuple of before 2020": ({"items": [{"const": 1}, {"const": 2}]}, ["[1,2]"], ["[1]", "[1,2,3]"]),
    "no further items": ({"type": "array", "items": False}, ["[]"], ["[1]"]),
    "strings": (
        {"type": "string"},
        ['""', '"é😀"', r'"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"'],
        ['"a\nb"', '"\t"', '"\x7f"', '"a', r'"\x"', r'"\ud83d"', r'"\ude00"', r'"\u12"', '"a"b"'],
    ),
    "lengths": (
        {"type": "string", "minLength": 2, "maxLength": 3},
        ['"ab"', '"abc"', '"é😀"', r'"\ud83d\ude00\n"'],
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
    "a format that is not known": ({"type": "string", "format": "haiku"}, ['"a b"'], ["1"]),
    "integers": (
        {"type": "integer"},
        ["0", "-1", "9999999999999999"],
        ["01", "1.0", "1e3", "+1", "-", "1" * 17],
    ),
    "numbers": (
        {"type": "number"},
        ["0", "-0.5", "1e3", "1.5E-12"],
        ["01", ".5", "1.", "1e", "1e400", "NaN"],
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
        ["3", "null", '{"name":"x","age":1}'],
        ['"3"', "{}"],
    ),
    "a choice beside what all share": (
        {
            "type": "object",
            "properties": {"a": {"const": 1}, "b": {"const": 2}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        ['{"a":1}', '{"b":2}', '{"a":1,"b":2}'],
        ["{}"],
    ),
    "all of several": (
        {
            "allOf": [
                {"properties": {"a": {"const": 1}}, "required": ["a"]},
                {"properties": {"b": {"const": 2}}},
            ]
        },
        ['{"a":1}', '{"a":1,"b":2}'],
        ["{}", '{"b":2}'],
    ),
    "a reference": (
        {
            "properties": {"p": {"$ref": "#/$defs/a~1b%20c"}},
            "required": ["p"],
            "$defs": {"a/b c": {"const": 7}},
        },
        ['{"p":7}'],
        ['{"p":8}'],
    ),
    "a reference with remarks": (
        {"$ref": "#/definitions/x", "description": "an x", "definitions": {"x": {"type": "null"}}},
        ["null"],
        ["1"],
    ),
    "a reference and more": (
        {"$ref": "#/$defs/x", "required": ["a"], "$defs": {"x": {"properties": {"a": {"const": 1}}}}},
        ['{"a":1}'],
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
        ["[1,2,3]"],
        ["[1,1,3]", "[2,2,3]", '[1,2,"a"]'],
    ),
    "a list by reference to itself": (
        LIST,
        ['{"value":1,"next":null}', '{"value":1,"next":{"value":2,"next":null}}'],
        ['{"value":1}', '{"value":1,"next":{}}'],
    ),
    "booleans as schemas": ({"type": "array", "items": True}, ['[1,"a"]'], ["{}"]),
    "a pattern": (
        {"type": "string", "pattern": "^[A-Z]{2}-\\d+$"},
        ['"AB-1"'],
        ['"A-1"', '"AB-"', '"xAB-1"'],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_a_schema_takes(writer: Writer, case: Case) -> None:
    schema, valid, invalid = case
    grammar = grammar_of(schema)
    old = isinstance(schema.get("items"), list)
    draft = jsonschema.Draft7Validator if old else jsonschema.Draft202012Validator
    for text in valid:
        draft(schema).validate(json.loads(text))
        assert writer.takes(grammar, text), text
    for text in invalid:
        assert not writer.takes(grammar, text), text


def test_a_json_object_is_any_object(writer: Writer) -> None:
    grammar = response_grammar({"type": "json_object"})
    assert grammar
    assert writer.takes(grammar, '{"a":[1,{"b":null}]}')
    assert writer.takes(grammar, "{}")
    for text in ("[]", "1", '"a"', "null", "", '{"a"}', '{"a":1}}'):
        assert not writer.takes(grammar, text), text


def test_any_text_needs_no_grammar() -> None:
    assert response_grammar(None) is response_grammar({"type": "text"}) is None


@pytest.mark.parametrize(
    "response_format",
    [{}, {"type": "xml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"name": "x"}}],
)
def test_what_is_no_response_format_is_refused(response_format: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused) as refused:
        response_grammar(response_format)
    assert (refused.value.param, refused.value.code) == ("response_format", "invalid_request")


def test_the_whole_range_and_nothing_else(writer: Writer) -> None:
    for low, high in ((0, 0), (-3, 12), (7, 1203), (95, 105), (-1010, -98), (0, 999)):
        grammar = grammar_of({"type": "integer", "minimum": low, "maximum": high})
        for n in range(low - 30, high + 30):
            assert writer.takes(grammar, str(n)) == (low <= n <= high), (n, low, high)


# Refusals

REFUSED: dict[str, tuple[Any, str]] = {
    "no schema": (3, "a schema is an object"),
    "nothing is valid": (False, "nothing is valid"),
    "a type that is none": ({"type": "float"}, '"type" cannot be'),
    "a type that is no name": ({"type": {}}, '"type" cannot be'),
    "the web": ({"$ref": "https://example.com/schema.json"}, "nothing is fetched"),
    "the web, deep inside": (
        {"properties": {"a": {"items": {"$ref": "http://localhost:1/x"}}}},
        "nothing is fetched",
    ),
    "a file": ({"$ref": "file:///etc/passwd"}, "nothing is fetched"),
    "an anchor": ({"$ref": "#here"}, "must point into"),
    "a reference that is no text": ({"$ref": {"a": 1}}, "must point into"),
    "a reference to nothing": ({"$ref": "#/$defs/missing"}, "points to nothing"),
    "a reference to itself": ({"$ref": "#"}, "refers to itself"),
    "references in a circle": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        "end",
    ),
    "a choice of itself alone": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}},
        "itself",
    ),
    "a choice that begins with itself": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}},
        "end",
    ),
    "all of itself": ({"allOf": [{"$ref": "#"}]}, "itself"),
    "an empty enum": ({"enum": []}, "not empty"),
    "an empty choice": ({"anyOf": []}, "not empty"),
    "an enum of another type": ({"type": "string", "enum": [1]}, "no value is valid"),
    "half a character": ({"const": "\ud83d"}, "cannot hold"),
    "half a character in a name": ({"properties": {"\ud83d": {}}}, "not valid Unicode"),
    "no number between": ({"type": "integer", "minimum": 5, "maximum": 3}, "no number is valid"),
    "a bound that is none": ({"type": "integer", "minimum": "1"}, "must be a number"),
    "lengths that cross": ({"type": "string", "minLength": 5, "maxLength": 3}, "above"),
    "a length that is none": ({"type": "string", "maxLength": -1}, "whole number"),
    "counts that cross": ({"type": "array", "minItems": 3, "maxItems": 2}, "above"),
    "more items than there may be": ({"prefixItems": [{}], "items": False, "minItems": 2}, "above"),
    "too many at least": ({"type": "string", "minLength": 5000}, "llama.cpp"),
    "a required property that is forbidden": (
        {"required": ["b"], "properties": {"a": {}}, **CLOSED},
        "is no property",
    ),
    "properties that are none": ({"properties": [1]}, "must be an object"),
    "required that is no list": ({"properties": {"a": {}}, "required": "a"}, "must be a list"),
    "properties beside a closed object": (
        {"allOf": [{"properties": {"a": {}}, **CLOSED}, {"properties": {"b": {}}}]},
        "additionalProperties",
    ),
    "a property of two schemas": (
        {"allOf": [{"properties": {"a": {"type": "null"}}}, {"properties": {"a": {"type": "string"}}}]},
        "several schemas",
    ),
}
HELD_ONLY_BY_STRICT: dict[str, Any] = {
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "contains": {"type": "array", "contains": {"const": 1}},
    "patternProperties": {"type": "object", "patternProperties": {"^a": {}}},
    "minProperties": {"type": "object", "minProperties": 2},
    "multipleOf": {"type": "integer", "multipleOf": 3},
    "exclusiveMinimum": {"type": "number", "exclusiveMinimum": 0},
    "minimum": {"type": "number", "minimum": 0.5},
    "oneOf": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "not": {"not": {"type": "null"}},
    "if": {"if": {}, "then": {}},
    "pattern": {"type": "string", "pattern": "(?=a)"},
    "2000 repeats": {"type": "string", "maxLength": 5000},
    "minLength": {"type": "string", "pattern": "^a+$", "minLength": 3},
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
    assert "\n" not in refused.value.message
    assert capfd.readouterr().err == "", "llama.cpp's parser is never given what it complains of"


@pytest.mark.parametrize("key", HELD_ONLY_BY_STRICT)
def test_a_keyword_that_no_grammar_holds_is_refused_if_strict_and_else_left_out(
    writer: Writer, key: str
) -> None:
    schema = HELD_ONLY_BY_STRICT[key]
    with pytest.raises(RequestRefused, match=key) as refused:
        grammar_of(schema)
    assert refused.value.code == "invalid_schema"
    text = writer.write(grammar_of(schema, strict=False), random.Random(1))
    assert text is not None
    json.loads(text)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def doubling(combine: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Each of 60 definitions has the next one twice."""
    defs = {f"d{i}": combine({"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}) for i in range(60)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, "d60": {"type": "object"}}}


HUGE: dict[str, Any] = {
    "nested": nested(900),
    "nested too deeply": nested(50_000),
    "many properties": {
        "properties": {f"p{i}": {"type": "string"} for i in range(5000)},
        "required": [f"p{i}" for i in range(5000)],
    },
    "too many properties": {"properties": {f"p{i}": {"type": "string"} for i in range(20_000)}},
    "many values": {"enum": [f"value {i * 7919 % 20_000}" for i in range(20_000)]},
    "values that begin alike": {"enum": ["a" * i for i in range(2000)]},
    "choices of choices": doubling(lambda a, b: {"anyOf": [a, {"anyOf": [b, {"type": "null"}]}]}),
    "all of all": doubling(lambda a, b: {"allOf": [a, b]}),
    "tuples of tuples": doubling(lambda a, b: {"prefixItems": [a, b]}),
    "many counts": {"prefixItems": [{"type": "string", "maxLength": 1500 + i} for i in range(100)]},
    "counts of counts": {"type": "string", "pattern": "^(((a{1,900}){1,900}){1,900}){1,900}$"},
    "counts after counts": {"type": "string", "pattern": "^.{0,900}.{0,900}.{0,900}$"},
    "choices that begin alike, inside each other": doubling(
        lambda a, b: {"anyOf": [{"items": a}, {"items": b, "maxItems": 3}, {"items": b, "maxItems": 4}]}
    ),
    "such choices by reference to themselves": {
        "anyOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}, "maxItems": 2}, {"type": "null"}]
    },
    "many optional properties": {"properties": {f"p{i}": {"type": "string"} for i in range(600)}},
    "many choices": {"anyOf": [{"prefixItems": [{"const": i}]} for i in range(1000)]},
    "counts of what may be empty": {"type": "string", "pattern": "^(((a?){0,900}){0,900}){0,900}$"},
    "a count beyond numbers": {"type": "string", "minLength": 10**400},
    "a bound beyond numbers": {"type": "integer", "maximum": 10**400},
    "a long pattern": {"type": "string", "pattern": "^" + "(a|b)" * 3000 + "$"},
    "a deep pattern": {"type": "string", "pattern": "^" + "(" * 3000 + "a" + ")" * 3000 + "$"},
}


@pytest.mark.parametrize("schema", HUGE.values(), ids=HUGE)
def test_a_huge_schema_is_taken_or_refused_within_a_second(writer: Writer, schema: Any) -> None:
    began = time.monotonic()
    refused = None
    try:
        constraint = writer.begin(grammar_of(schema))
        assert constraint.allowed(np.arange(320)).any()
    except RequestRefused as error:
        refused = error
    assert refused is None or (refused.code == "invalid_schema" and len(refused.message) < 400)
    assert time.monotonic() - began < 3, "with room for a slow machine"


def test_a_schema_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = response_grammar(schema_format({"const": "compiled once"}))
    monkeypatch.setattr("engine.grammar.to_gbnf", None)
    assert response_grammar(schema_format({"const": "compiled once"})) is first


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
    st.just(True),
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


BINARY = {
    "type": "object",
    "properties": {"op": {"enum": ["+", "-"]}, "left": {"$ref": "#"}, "right": {"$ref": "#"}},
    "required": ["op", "left", "right"],
}
TREES: dict[str, Any] = {
    "told apart by their first value": [
        BINARY,
        {"properties": {"op": {"const": "neg"}, "of": {"$ref": "#"}}, "required": ["op", "of"]},
        {"type": "integer"},
    ],
    "told apart by their first names": [
        BINARY,
        {"properties": {"not": {"$ref": "#"}}, "required": ["not"]},
        {"type": "array", "items": {"$ref": "#"}},
    ],
}


@pytest.mark.parametrize("ways", TREES.values(), ids=TREES)
def test_a_tree_whose_nodes_are_told_apart_as_they_begin_is_taken(writer: Writer, ways: list[Any]) -> None:
    schema = {"anyOf": ways}
    for seed in range(20):
        text = writer.write(grammar_of(schema), random.Random(seed))
        if text is not None:
            jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)


def test_a_tree_whose_nodes_are_not_told_apart_is_refused() -> None:
    twin = {**BINARY, "properties": {**BINARY["properties"], "op": {"type": "string"}}}
    with pytest.raises(RequestRefused, match="ways of reading"):
        grammar_of({"anyOf": [BINARY, twin, {"type": "integer"}]})


NODE = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["next"],
}


@given(schema=st.recursive(scalars, larger, max_leaves=8), seed=st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_whatever_is_written_is_valid(writer: Writer, schema: Any, seed: int) -> None:
    whole = {**schema, "$defs": {"node": NODE}} if isinstance(schema, dict) else schema
    text = writer.write(grammar_of(whole), random.Random(seed))
    if text is not None:
        jsonschema.validate(json.loads(text), whole, jsonschema.Draft202012Validator)
