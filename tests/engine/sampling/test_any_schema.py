"""Any schema, however large: it is held or refused within the limits, and what is written is valid."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import RequestRefused
from tests.engine.helpers.answers import FIRST_BYTE, Writer, failure, grammar_of, nested

pytestmark = pytest.mark.slow

CLOSED = {"additionalProperties": False}


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
        assert error.param == "response_format"
        dear = ["schema_too_complex"] if "multipleOf" in str(schema) else []  # a state for each remainder
        assert error.code in ["invalid_schema", *dear]
        assert "\n" not in error.message


texts = st.sampled_from(["a", "ab", 'q"x', "n\nl", "\\b", "é😀", "\u2028", "", "*", "x y", "0"])
doubles = st.integers(-(2**62), 2**62).map(float).map(int)  # what is beyond 64 bits is refused
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
    st.builds(
        lambda a, b: {"type": "integer", "minimum": a, "maximum": a + b},
        st.integers(2**53 - 100, 2**53 + 100),
        st.integers(2, 300),
    ),
    st.sampled_from([{"type": t} for t in ("integer", "number", "boolean", "null", "object", "array")]),
    st.builds(lambda values: {"enum": values}, st.lists(st.one_of(texts, doubles, st.none()), min_size=1)),
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
