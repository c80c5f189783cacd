"""Objects that name their properties have no others; those that several schemas describe stay open."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling.closed_objects import close_objects
from tests.engine.helpers.answers import Writer, grammar_of, in_one_form

A = {"properties": {"a": {"type": "null"}}}
B = {"properties": {"b": {"type": "null"}}}
CLOSED = {"additionalProperties": False}

# (schema, what it becomes)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "an object": (A, {**A, **CLOSED}),
    "no property": ({"type": "object", "properties": {}}, {"type": "object", "properties": {}}),
    "any object": ({"type": "object"}, {"type": "object"}),
    "what is said": ({**A, "additionalProperties": True}, {**A, "additionalProperties": True}),
    "required but not named": ({**A, "required": ["x"]}, {**A, "required": ["x"]}),
    "more than are named": ({**A, "minProperties": 2}, {**A, "minProperties": 2}),
    "inside": (
        {"properties": {"list": {"items": A}, "map": {"additionalProperties": B}}},
        {
            "properties": {
                "list": {"items": {**A, **CLOSED}},
                "map": {"additionalProperties": {**B, **CLOSED}},
            },
            **CLOSED,
        },
    ),
    "alternatives": ({"anyOf": [A, B]}, {"anyOf": [{**A, **CLOSED}, {**B, **CLOSED}]}),
    "alternatives beside properties": ({**A, "anyOf": [B, {}]}, {**A, "anyOf": [B, {}]}),
    "all of two": ({"allOf": [A, B]}, {"allOf": [A, B]}),
    "all of one": ({"allOf": [A], "title": "x"}, {"allOf": [{**A, **CLOSED}], "title": "x"}),
    "no exception": ({"not": A}, {"not": A}),
    "the same property in two": (
        {"allOf": [{"properties": {"p": A}}, {"properties": {"p": B}}]},
        {"allOf": [{"properties": {"p": A}}, {"properties": {"p": B}}]},
    ),
    "a reference": (
        {"$ref": "#/$defs/x", "$defs": {"x": A}},
        {"$ref": "#/$defs/x", "$defs": {"x": {**A, **CLOSED}}},
    ),
    "a base": (
        {"$defs": {"x~/y": A, "z": B}, "allOf": [{"$ref": "#/$defs/x~0~1y"}, B], "title": "x"},
        {
            "$defs": {"x~/y": A, "z": {**B, **CLOSED}},
            "allOf": [{"$ref": "#/$defs/x~0~1y"}, B],
            "title": "x",
        },
    ),
    "a base by a name": (
        {"$defs": {"x": {"$anchor": "x", **A}}, "allOf": [{"$ref": "#x"}, B]},
        {"$defs": {"x": {"$anchor": "x", **A}}, "allOf": [{"$ref": "#x"}, B]},
    ),
    "a constant": ({"const": A, "enum": [A], "default": A}, {"const": A, "enum": [A], "default": A}),
    "no schema": (
        {"properties": [A], "allOf": 3, "$ref": 4, "items": "x"},
        {"properties": [A], "allOf": 3, "$ref": 4, "items": "x"},
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_closed(case: tuple[dict[str, Any], dict[str, Any]]) -> None:
    schema, closed = case
    before = json.dumps(schema)
    assert close_objects(schema) == closed
    assert json.dumps(schema) == before


NAMES = ["a", "b", "c", "nested name"]
leaves = st.sampled_from(
    [{"type": "null"}, {"type": "boolean"}, {"enum": ["x", "yy"]}, {"type": "integer", "maximum": 99}]
)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=3)
    return properties.flatmap(
        lambda p: st.sets(st.sampled_from(sorted(p))).map(
            lambda required: {"type": "object", "properties": p, "required": sorted(required)}
        )
    )


def schemas() -> st.SearchStrategy[Any]:
    return objects(
        st.recursive(
            leaves,
            lambda inner: st.one_of(
                objects(inner),
                inner.map(lambda items: {"type": "array", "items": items, "maxItems": 2}),
                st.lists(inner, min_size=1, max_size=2).map(lambda some: {"anyOf": some}),
            ),
            max_leaves=5,
        )
    )


def in_order(value: Any, schema: Any) -> bool:
    """Whether the properties of each object stand in the order of the schema; anyOf is left out."""
    if isinstance(value, list):
        return all(in_order(item, schema.get("items", {})) for item in value)
    if not isinstance(value, dict) or "properties" not in schema:
        return True
    order = [name for name in schema["properties"] if name in value]
    return [*value] == order and all(in_order(value[n], schema["properties"][n]) for n in value)


@pytest.mark.slow
@given(schema=schemas(), seed=st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_any_answer_is_valid_in_one_form_and_in_the_order_of_the_schema(
    writer: Writer, schema: Any, seed: int
) -> None:
    text = writer.write(grammar_of(schema), random.Random(seed), most=600)
    if text is None:
        return
    value = json.loads(text)
    jsonschema.validate(value, close_objects(schema), jsonschema.Draft202012Validator)
    jsonschema.validate(value, schema, jsonschema.Draft202012Validator)
    assert in_one_form(text)
    assert in_order(value, schema)
