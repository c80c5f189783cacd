"""The keywords of JSON schemas: which there are, what their values may be, how two schemas become one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from engine.errors import RequestRefused

Schema = Mapping[str, Any]

# The keywords that say what is valid; all others are remarks.
KEYWORDS = {
    "object": {
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
        *("minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies"),
        "unevaluatedProperties",
    },
    "array": {
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains"),
        *("minContains", "maxContains", "unevaluatedItems"),
    },
    "string": {"minLength", "maxLength", "pattern"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "boolean": set[str](),
    "null": set[str](),
}
KEYWORDS["integer"] = KEYWORDS["number"]
OF_ANY_TYPE = {"not", "if", "$dynamicRef", "$recursiveRef"}
CHOICES = ("anyOf", "oneOf")
COMBINING = {*CHOICES, "allOf", "$ref", "const", "enum", "type"}
ALL_KEYWORDS = COMBINING.union(OF_ANY_TYPE, *KEYWORDS.values())


def merged(one: Schema, other: Schema, at: str) -> Schema:
    """A schema under which is valid what is valid under both."""
    both = dict(one)
    for this, that in ((one, other), (other, one)):
        beyond = [name for name in that.get("properties", {}) if name not in this.get("properties", {})]
        if beyond and this.get("additionalProperties", True) is not True:
            refuse(at, f'"additionalProperties" in one schema, and {beyond[0]!r} in another that holds too')
        if "items" in this and "prefixItems" in that and "prefixItems" not in this:
            refuse(at, '"items" and "prefixItems" in several schemas that hold together')
    for key, value in other.items():
        if key not in one or key not in ALL_KEYWORDS or one[key] == value:
            both.setdefault(key, value)
        elif key == "required":
            both[key] = [*items_of(one, key, at, []), *items_of(other, key, at, [])]
        elif key == "properties" and isinstance(value, Mapping) and isinstance(one[key], Mapping):
            twice = [name for name in value if name in one[key] and one[key][name] != value[name]]
            if twice:
                refuse(at, f"the property {twice[0]!r} has several schemas that hold together")
            both[key] = {**one[key], **value}
        else:
            refuse(at, f'"{key}" in several schemas that hold together')
    return both


def guessed_type(schema: Schema) -> str:
    kinds = (kind for kind in ("object", "array", "string", "number") if KEYWORDS[kind] & schema.keys())
    return next(kinds, "value")


def is_of(value: Any, kind: Any) -> bool:
    if isinstance(value, bool):
        return bool(kind == "boolean")
    if isinstance(value, int | float):
        return kind == "number" or bool(kind == "integer" and value % 1 == 0)
    kinds = {str: "string", type(None): "null", list: "array", dict: "object"}
    return bool(kinds.get(type(value)) == kind)


def items_of(schema: Schema, key: str, at: str, default: list[Any] | None = None) -> list[Any]:
    value = schema.get(key, default)
    if not isinstance(value, list) or (not value and default is None):
        refuse(at, f'"{key}" must be a list' + (" that is not empty" if default is None else ""))
    return value


def count_of(schema: Schema, key: str, at: str) -> int | None:
    value = schema.get(key)
    if value is None:
        return None
    if not is_of(value, "integer") or value < 0:
        refuse(at, f'"{key}" must be a whole number')
    return int(value)


def bound_of(schema: Schema, key: str, at: str) -> float | None:
    value = schema.get(key)
    if value is None:
        return None
    if not is_of(value, "number") or (isinstance(value, float) and not math.isfinite(value)):
        refuse(at, f'"{key}" must be a number')
    return value  # type: ignore[no-any-return]


def refuse(at: str, why: str) -> NoReturn:
    """at: where in the schema, as a JSON pointer."""
    place = at if at.isprintable() and len(at) < 100 else f"{ascii(at)[1:80]}..."
    raise RequestRefused(
        f"response_format: no grammar for the schema at {place}: {why[:200]}",
        param="response_format",
        code="invalid_schema",
    )
