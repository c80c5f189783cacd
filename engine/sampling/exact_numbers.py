"""Numbers of a JSON schema that llguidance would round: it computes with doubles, and bounds of 64 bits."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from engine.sampling.closed_objects import DEFINITIONS, INNER_NAMED, Schema

LEAST = ("minimum", "exclusiveMinimum")
MOST = ("maximum", "exclusiveMaximum")
VALUES = ("const", "enum", "multipleOf")
LEAST_INTEGER = -(2**63)
NAMED = (*INNER_NAMED, *DEFINITIONS, "dependentSchemas")  # schemas by name


def keep_exact(schema: Schema) -> None:
    """Move bounds inwards to the next double, in place. Raises ValueError for what cannot be held so."""
    todo: list[Any] = [schema]
    while todo:
        node = todo.pop()
        if isinstance(node, list):
            todo += node
        if not isinstance(node, dict):
            continue
        for key, value in node.items():
            if key in VALUES:
                _check(value)
            elif key in LEAST:
                node[key] = _inwards(value, math.inf)
            elif key in MOST:
                node[key] = _inwards(value, -math.inf)
            elif key in NAMED and isinstance(value, dict):
                todo += value.values()
            else:
                todo.append(value)


def _check(value: Any) -> None:
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            todo += one.values()
        elif isinstance(one, list):
            todo += one
        elif isinstance(one, int | float) and not isinstance(one, bool) and _written(one) != one:
            raise ValueError(f"a number would be rounded, so use a string: {one}")


def _written(number: float) -> float | Decimal:
    """What is read of what llguidance writes for it: of a double the shortest digits, and zeros."""
    double = _double(number) if isinstance(number, int) else number
    if isinstance(number, int) and LEAST_INTEGER < number < -LEAST_INTEGER:
        return double
    return Decimal(repr(double)) if math.isfinite(double) and double.is_integer() else double


def _inwards(bound: Any, inside: float) -> Any:
    if not isinstance(bound, int | float) or isinstance(bound, bool):
        return bound
    moved = bound
    if isinstance(bound, int) and not math.isinf(double := _double(bound)):
        outside = double < bound if inside > 0 else double > bound
        moved = int(math.nextafter(double, inside) if outside else double)
    if moved >= -LEAST_INTEGER if inside > 0 else moved < LEAST_INTEGER:
        raise ValueError(f"a bound lies beyond the doubles among the integers of 64 bits: {bound}")
    return moved


def _double(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf
