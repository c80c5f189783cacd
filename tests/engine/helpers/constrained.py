"""Requests held to schemas, and whether their answers are valid."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jsonschema

from engine import Completion, FinishReason, Request
from tests.engine.helpers.answers import grammar_of, in_one_form
from tests.engine.helpers.drive import request

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "kind": {"enum": ["friend", "foe", None]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 2},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}
CHOICE = {
    "anyOf": [
        {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]},
        {"type": "array", "items": {"type": "number", "minimum": -5, "maximum": 5}, "maxItems": 4},
        {"type": "string", "pattern": "^[a-j]{2,5}(-[0-9]{2})?$"},
    ]
}
SCHEMAS = (PERSON, CHOICE)
SAMPLERS: dict[str, dict[str, object]] = {
    "greedy": {},
    "warm": {"temperature": 0.8, "seed": 11},
    "nucleus": {"temperature": 0.8, "top_p": 0.9, "seed": 12},
    "filtered": {"temperature": 1.2, "top_k": 40, "min_p": 0.02, "seed": 13},
    "penalised": {"temperature": 0.8, "repetition_penalty": 1.2, "presence_penalty": 0.3, "seed": 14},
}


def constrained(name: str, prompt: str, schema: Any, **sampling: object) -> Request:
    values = {"max_tokens": 90, "ignore_eos": False, "grammar": grammar_of(schema), **sampling}
    return request(name, prompt, **values)


def mixed(texts: Sequence[str], *samplers: str, **sampling: object) -> list[Request]:
    """Every third one free, the others held to one of two schemas; with each sampler in its turn."""
    made = []
    for i, text in enumerate(texts):
        way = SAMPLERS[samplers[i % len(samplers)]] if samplers else {}
        own = {**way, **sampling, "seed": i, "logprobs": 2}
        if i % 3 == 2:
            made.append(request(f"r{i}", text, **{**own, "max_tokens": 24}))
        else:
            made.append(constrained(f"r{i}", text, SCHEMAS[i % 3], **own))
    return made


def check(requests: Sequence[Request], results: dict[str, Completion]) -> int:
    """Those held to a schema are valid if they came to an end; how many did."""
    ended = 0
    for r in requests:
        result = results[r.id]
        if r.sampling.grammar is None or result.finish_reason is not FinishReason.STOP:
            continue
        ended += 1
        schema = next(s for s in SCHEMAS if grammar_of(s) == r.sampling.grammar)
        value = json.loads(result.text)
        jsonschema.validate(value, schema, jsonschema.Draft202012Validator)
        assert result.complete
        assert in_one_form(result.text)
        if isinstance(value, dict):
            order = schema.get("properties", ["yes"])
            assert [*value] == [*order], "nothing else, and in the order of the schema"
    return ended
