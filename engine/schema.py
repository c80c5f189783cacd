"""From a JSON schema to a grammar of the JSON texts that are valid under it, or to a refusal.

Not by llama_cpp.llama_grammar, whose converter lets through what does not parse (line ends in strings,
quotes in patterns) or is not valid (`enum` beside a list of types, bounds of integers), and mixes up
definitions of one name.

The grammar may allow less than the schema, never more: properties come in their declared order; where
some are declared there are no others; a string with a format that is known here keeps to it. A keyword
that it cannot hold is refused if the schema is strict, and left out if it is not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any
from urllib.parse import unquote

from engine.ambiguity import MAX_OPEN, SHAPES, Shape, is_too_open
from engine.gbnf import MAX_REPEATS, Rules, TooLarge, any_of, integers, literal, numbers
from engine.keywords import (
    ALL_KEYWORDS,
    CHOICES,
    KEYWORDS,
    OF_ANY_TYPE,
    Schema,
    bound_of,
    count_of,
    guessed_type,
    is_of,
    items_of,
    merged,
    refuse,
)
from engine.patterns import PatternRefused, pattern

MAX_PARTS = 10_000  # schemas inside a schema, each counted as often as it is looked at
MAX_VALUES = 200_000  # characters of one enum: thousands of values, compiled in a fraction of a second
FEW_VALUES = 20  # of a first property, by which objects are told apart
DATE = '[0-9]{4} "-" ("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | [12] [0-9] | "3" [01])'
TIME = (
    '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{3})? '
    '("Z" | [+-] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9])'
)
FORMATS = {
    "date": DATE,
    "time": TIME,
    "date-time": f'{DATE} "T" {TIME}',
    "uuid": ' "-" '.join(f"hex{{{digits}}}" for digits in (8, 4, 4, 4, 12)),
}


def to_gbnf(schema: Any, strict: bool) -> str:
    """The grammar of a schema. Raises RequestRefused; RecursionError for one nested too deeply."""
    compiler = _Compiler(schema, strict)
    root = compiler.visit(schema, "#")
    if is_too_open(root, compiler.choices, compiler.shapes):
        refuse("#", f"more than {MAX_OPEN} ways of reading an answer would be open at once")
    return compiler.rules.text(root)


class _Compiler:
    def __init__(self, root: Any, strict: bool) -> None:
        self.rules = Rules()
        self._root = root
        self._strict = strict
        self._parts = 0
        self._references: dict[str, str] = {}  # $ref -> name of its rule
        self.choices: dict[str, list[str]] = {}  # name of a rule -> names of those that it chooses from
        self.shapes = dict(SHAPES)  # of objects and arrays, by the names of their rules
        self._texts: dict[str, list[str]] = {}  # of the rules for enum and const

    def visit(self, schema: Any, at: str) -> str:
        """The name of the rule for a schema. at: where in the whole it stands, for people."""
        self._parts += 1
        if self._parts > MAX_PARTS:
            refuse(at, f"it has more than {MAX_PARTS} parts")
        if schema is True:
            return "value"
        if not isinstance(schema, Mapping):
            refuse(at, "nothing is valid here" if schema is False else "a schema is an object or a boolean")
        reference = schema.get("$ref")
        if reference is not None and not ALL_KEYWORDS & (schema.keys() - {"$ref"}):
            return self._reference(reference, at)
        if reference is not None or "allOf" in schema:
            schema = self._flat(schema, at)
        self._hold(schema, OF_ANY_TYPE, at)
        for choice in CHOICES:
            if choice in schema:
                return self._choice(schema, choice, at)
        if "enum" in schema or "const" in schema:
            return self._values(schema, at)
        kind = schema.get("type", guessed_type(schema))
        if isinstance(kind, list) and kind:
            return self._one_of([self.visit({**schema, "type": one}, at) for one in kind], at)
        return self._typed(schema, kind, at)

    def _typed(self, schema: Schema, kind: Any, at: str) -> str:
        if kind == "value":
            return "value"
        if kind == "object":
            return self._object(schema, at)
        if kind == "array":
            return self._array(schema, at)
        if kind == "string":
            return self._string(schema, at)
        if kind in ("integer", "number"):
            return self._number(schema, kind, at)
        if kind not in ("boolean", "null"):
            refuse(at, f'"type" cannot be {kind!r}')
        return str(kind)

    # References and combinations

    def _reference(self, reference: Any, at: str) -> str:
        if isinstance(reference, str) and reference in self._references:
            return self._references[reference]
        target = self._target(reference, at)
        name = self._references[reference] = f"def{len(self._references)}"
        body = self.visit(target, reference)
        if body == name:
            refuse(at, f'"$ref" refers to itself: {reference}')
        self.choices[name] = [body]
        self.rules.define(name, body)
        return name

    def _target(self, reference: Any, at: str) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            refuse(at, f'"$ref" must point into the schema ("#/..."), nothing is fetched: {reference!r}')
        target = self._root
        for step in unquote(reference).split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and step.isdecimal() and int(step) < len(target):
                target = target[int(step)]
            elif isinstance(target, Mapping) and step in target:
                target = target[step]
            else:
                refuse(at, f'"$ref" points to nothing: {reference}')
        return target

    def _flat(self, schema: Any, at: str) -> Schema:
        """The schema with its $ref and allOf merged into it."""
        self._parts += 1
        if schema is True:
            return {}
        if not isinstance(schema, Mapping) or self._parts > MAX_PARTS:
            refuse(at, 'a part of "allOf" must be a schema, and not refer to itself')
        parts: list[Schema] = [{key: schema[key] for key in schema if key not in ("$ref", "allOf")}]
        if "$ref" in schema:
            parts.append(self._flat(self._target(schema["$ref"], at), schema["$ref"]))
        parts += [self._flat(part, at) for part in items_of(schema, "allOf", at, [])]
        return reduce(lambda one, other: merged(one, other, at), parts)

    def _choice(self, schema: Schema, choice: str, at: str) -> str:
        if choice == "oneOf":
            self._hold(schema, {"oneOf"}, at)
        common = {key: schema[key] for key in schema if key != choice}
        shared = ALL_KEYWORDS & common.keys()
        ways = []
        for i, way in enumerate(items_of(schema, choice, at)):
            place = f"{at}/{choice}/{i}"
            ways.append(self.visit(merged(common, self._flat(way, place), at) if shared else way, place))
        return self._one_of(ways, at)

    def _one_of(self, names: list[str], at: str) -> str:
        """A choice between rules, not between choices: what begins alike in many ways is slow to read."""
        seen: dict[str, None] = {}
        todo = names[::-1]
        while todo:
            name = todo.pop()
            if name not in seen:
                seen[name] = None
                todo += self.choices.get(name, [])[::-1]
        ways = [name for name in seen if name not in self.choices]
        if not ways:
            refuse(at, "it refers to itself without end")
        if len(ways) == 1:
            return ways[0]
        rule = self.rules.add(" | ".join(ways))
        self.choices[rule] = ways
        return rule

    def _values(self, schema: Schema, at: str) -> str:
        values = [schema["const"]] if "const" in schema else items_of(schema, "enum", at)
        self._hold(schema, ALL_KEYWORDS - {"const", "enum", "type"}, at)
        if "const" in schema and "enum" in schema:
            values = [value for value in values if value in items_of(schema, "enum", at)]
        if "type" in schema:
            kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            values = [value for value in values if any(is_of(value, kind) for kind in kinds)]
        if not values:
            refuse(at, "no value is valid here")
        try:
            texts = [json.dumps(value, ensure_ascii=False, allow_nan=False) for value in values]
            "".join(texts).encode()
        except ValueError:
            refuse(at, "a value that JSON cannot hold")
        if sum(map(len, texts)) > MAX_VALUES:
            refuse(at, f"its values have more than {MAX_VALUES} characters")
        texts = sorted(set(texts))
        name = self.rules.add(any_of(texts))
        self._texts[name] = texts
        return name

    # Types

    def _object(self, schema: Schema, at: str) -> str:
        self._hold(schema, KEYWORDS["object"] - {"properties", "required", "additionalProperties"}, at)
        properties = schema.get("properties", {})
        if not isinstance(properties, Mapping):
            refuse(at, '"properties" must be an object')
        required = items_of(schema, "required", at, [])
        if not all(isinstance(name, str) for name in required):
            refuse(at, '"required" must be a list of names')
        others = schema.get("additionalProperties", True)
        undeclared = [name for name in dict.fromkeys(required) if name not in properties]
        if undeclared and others is False:
            refuse(at, f'"required" names {undeclared[0]!r}, which is no property')
        if not properties and not undeclared:
            return self._map(others, at)
        values = {**properties, **dict.fromkeys(undeclared, others)}
        # From the last to the first: what an object holds that begins with this property or a later one
        first, after, needed = "", "", False
        begins: list[str] = []
        inner, open_ways, most_ways = [], 0, 0
        for name in reversed(values):
            key = self._key(name, at)
            value = self.visit(values[name], f"{at}/properties/{name}")
            ways = [f"{literal(key)} space {value} {after}"]
            if name in required:
                begins, open_ways, needed = [], 0, True
            elif first:
                ways.append(first)
            first = self.rules.add(" | ".join(ways))
            after = f"comma {first}" if needed else f"(comma {first})?"
            inner.append(value)
            texts = self._texts.get(value, [""])
            begins += ["{" + key + text for text in (texts if len(texts) <= FEW_VALUES else [""])]
            open_ways += 1
            most_ways = max(most_ways, open_ways)
        inside = f"{first} space" if needed else f"({first} space)?"
        return self._shaped(f'"{{" space {inside} "}}"', begins, inner, most_ways)

    def _shaped(self, body: str, begins: list[str], inside: list[str], ways: int = 1) -> str:
        name = self.rules.add(body)
        self.shapes[name] = Shape(tuple(begins), tuple(inside), ways)
        return name

    def _key(self, name: str, at: str) -> str:
        """How a JSON text writes the name of a property."""
        try:
            name.encode()
        except UnicodeEncodeError:
            refuse(at, f"the property {name!r} is not valid Unicode")
        return json.dumps(name, ensure_ascii=False) + ":"

    def _map(self, values: Any, at: str) -> str:
        if values is True or values == {}:
            return "object"
        if values is False:
            return self._shaped('"{" space "}"', ["{"], [])
        value = self.visit(values, f"{at}/additionalProperties")
        member = f'string ":" space {value}'
        return self._shaped(f'"{{" space ({member} (comma {member})* space)? "}}"', ["{"], [value])

    def _array(self, schema: Schema, at: str) -> str:
        held = {"items", "prefixItems", "minItems", "maxItems", "additionalItems"}
        self._hold(schema, KEYWORDS["array"] - held, at)
        rest = schema.get("items")
        begin = items_of(schema, "prefixItems", at, [])
        if isinstance(rest, list):  # as until 2019
            begin, rest = rest, schema.get("additionalItems")
        least, most = count_of(schema, "minItems", at) or 0, count_of(schema, "maxItems", at)
        if most is None and (rest is False or (begin and rest is None)):
            most = max(least, len(begin))
        if most is not None and least > most:
            refuse(at, '"minItems" is above "maxItems"')
        if most == 0:
            return self._shaped('"[" space "]"', ["["], [])
        begin = begin[:most]
        items = [self.visit(item, f"{at}/prefixItems/{i}") for i, item in enumerate(begin)]
        more = None if most is None else most - len(items)
        if more == 0:
            return self._shaped(f'"[" space {" comma ".join(items)} space "]"', ["["], items)
        if rest is False:
            refuse(at, '"minItems" is above the number of items')
        item = self.visit(True if rest is None else rest, f"{at}/items")
        further = self.rules.add(f"comma {item}")
        if not items:
            tail = self._repeat(further, max(0, least - 1), None if more is None else more - 1, at)
            body = f"{item} {tail} space" if least else f"({item} {tail} space)?"
        else:
            tail = self._repeat(further, max(0, least - len(items)), more, at)
            body = f"{' comma '.join(items)} {tail} space"
        return self._shaped(f'"[" space {body} "]"', ["["], [*items, item])

    def _string(self, schema: Schema, at: str) -> str:
        if "pattern" in schema:
            self._hold(schema, KEYWORDS["string"] - {"pattern"}, at)
            return self._pattern(schema["pattern"], at)
        least, most = count_of(schema, "minLength", at), count_of(schema, "maxLength", at)
        if least is None and most is None:
            form = schema.get("format")
            known = isinstance(form, str) and form in FORMATS
            return self.rules.add(rf'"\"" {FORMATS[str(form)]} "\""') if known else "string"
        if most is not None and (least or 0) > most:
            refuse(at, '"minLength" is above "maxLength"')
        return self.rules.add(rf'"\"" {self._repeat("char", least or 0, most, at)} "\""')

    def _pattern(self, regex: Any, at: str) -> str:
        if not isinstance(regex, str):
            refuse(at, '"pattern" must be a string')
        try:
            return self.rules.add(rf'"\"" ({pattern(regex, self.rules)}) "\""')
        except (PatternRefused, TooLarge) as error:
            if self._strict:
                refuse(at, f'"pattern" is more than a grammar can hold: {error}')
            return "string"

    def _number(self, schema: Schema, kind: str, at: str) -> str:
        self._hold(schema, {"multipleOf"}, at)
        low, high = bound_of(schema, "minimum", at), bound_of(schema, "maximum", at)
        above, below = bound_of(schema, "exclusiveMinimum", at), bound_of(schema, "exclusiveMaximum", at)
        if kind == "number":
            self._hold(schema, {"exclusiveMinimum", "exclusiveMaximum"}, at)
            fractional = {name for name, end in (("minimum", low), ("maximum", high)) if end and end % 1}
            self._hold(schema, fractional, at)
            ends = [None if end is None or end % 1 else int(end) for end in (low, high)]
            body = numbers(*ends)
        else:
            lows = [math.ceil(low)] if low is not None else []
            highs = [math.floor(high)] if high is not None else []
            lows += [math.floor(above) + 1] if above is not None else []
            highs += [math.ceil(below) - 1] if below is not None else []
            ends = [max(lows, default=None), min(highs, default=None)]
            body = integers(*ends)
        if body is None:
            refuse(at, "no number is valid here")
        return self.rules.add(body) if any(end is not None for end in ends) else kind

    # What a grammar cannot hold

    def _repeat(self, name: str, least: int, most: int | None, at: str) -> str:
        if not self._strict and (most or 0) > MAX_REPEATS:
            most = None
        try:
            return self.rules.repeat(name, least, most)
        except TooLarge as error:
            refuse(at, f"a count of more than llama.cpp takes: {error}")

    def _hold(self, schema: Schema, beyond: Iterable[str], at: str) -> None:
        """Refuse keywords beyond what the grammar can hold, if it must hold them all."""
        if self._strict:
            for key in schema:
                if key in beyond and (key, schema[key]) != ("uniqueItems", False):
                    refuse(at, f'a grammar cannot hold "{key}": leave it out, or set "strict" to false')
