"""Closes the objects of a JSON schema: one that names properties, and says nothing of others, has no others.

JSON Schema allows any further property there, and models that may add some often do not come to an end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

Schema = dict[str, Any]

# What else the same value must match. Where several parts of a schema describe one object, each has the
# properties that the others name, so that none of them may be closed.
ALTERNATIVES = ("anyOf", "oneOf")
CONDITIONS = ("not", "if", "then", "else")
DEPENDENT = ("dependentSchemas", "dependencies")
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# Other values: schemas, lists of schemas, and schemas by name
INNER = ("items", "additionalItems", "contains", "additionalProperties", "unevaluatedItems", "propertyNames")
INNER_LISTS = ("items", "prefixItems")
INNER_NAMED = ("properties", "patternProperties")
DEFINITIONS = ("$defs", "definitions")


def close_objects(schema: Mapping[str, Any]) -> Schema:
    """A copy that says "additionalProperties": false wherever it is meant.

    Left open are objects that name no property, that require one they do not name, and those described by
    several schemas at once (allOf, or $ref, anyOf and oneOf beside other keywords). Raises RecursionError and
    ValueError as json.dumps does.
    """
    root: Schema = json.loads(json.dumps(schema))
    closable: dict[int, Schema] = {}
    shared: set[int] = set()  # those that describe an object together with others
    seen: set[tuple[int, bool]] = set()
    todo: list[tuple[Any, bool]] = [(root, False)]
    while todo:
        node, is_shared = todo.pop()
        if not isinstance(node, dict) or (id(node), is_shared) in seen:
            continue
        seen.add((id(node), is_shared))
        if is_shared:
            shared.add(id(node))
        if _names_all(node):
            closable[id(node)] = node
        parts = list(_parts(node))
        own = any(key in node for key in ("properties", "patternProperties", "required"))
        together = is_shared or len(parts) + own > 1 or any(key in node for key in (*CONDITIONS, *DEPENDENT))
        if together and parts:
            shared.add(id(node))
        for alternatives in parts:
            todo += ((part, together) for part in alternatives)
        for key in REFERENCES:
            if key in node:
                target = _resolve(root, node[key])
                if together and target is None:  # it may be anywhere
                    return root
                todo.append((target, together))
        # The same property may have a schema in each of those that describe the object.
        todo += ((inner, id(node) in shared) for inner in _inner(node))
        for key in DEFINITIONS:
            todo += ((definition, False) for definition in _values(node.get(key)))
    for key_id, node in closable.items():
        if key_id not in shared:
            node["additionalProperties"] = False
    return root


def _names_all(node: Schema) -> bool:
    properties, required = node.get("properties"), node.get("required", [])
    if not properties or not isinstance(properties, dict) or not isinstance(required, list):
        return False
    if "additionalProperties" in node or "unevaluatedProperties" in node:
        return False
    least = node.get("minProperties", 0)
    enough = not isinstance(least, int | float) or least <= len(properties)
    return enough and all(isinstance(name, str) and name in properties for name in required)


def _parts(node: Schema) -> Iterator[list[Any]]:
    """What describes the same value as the node: of each list, one schema does."""
    for part in _list(node.get("allOf")):
        yield [part]
    for key in ALTERNATIVES:
        if key in node:
            yield _list(node[key])
    for key in CONDITIONS:
        if key in node:
            yield [node[key]]
    for key in DEPENDENT:
        yield from ([part] for part in _values(node.get(key)))
    for key in REFERENCES:
        if key in node:
            yield []


def _inner(node: Schema) -> Iterator[Any]:
    for key in INNER:
        yield node.get(key)
    for key in INNER_LISTS:
        yield from _list(node.get(key))
    for key in INNER_NAMED:
        yield from _values(node.get(key))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _values(value: Any) -> list[Any]:
    return [*value.values()] if isinstance(value, dict) else []


def _resolve(root: Schema, reference: Any) -> Any:
    """What a reference into the same document, as "#/$defs/a", refers to; None for any other."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    at: Any = root
    for step in reference.removeprefix("#").split("/")[1:] if reference != "#" else ():
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(at, dict) and name in at:
            at = at[name]
        elif isinstance(at, list) and name.isdecimal() and int(name) < len(at):
            at = at[int(name)]
        else:
            return None
    return at if reference == "#" or reference.startswith("#/") else None
