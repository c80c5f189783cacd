"""The filters of templates, each of which pays for its work before it does it.

The prices are measured: tests/tables/templates/test_prices.py. cost.py bounds comparisons and the like.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jinja2

from tables.base.values import json_text, text_of
from tables.templates.cost import CURRENT

LOOP, CONCAT, ADD = "row_loop", "row_concat", "row_add"
PLAIN = ("abs", "count", "d", "default", "first", "items", "last", "length")  # take no time for long values
OF_ITEMS = {"float": 1, "int": 1, "list": 4, "reverse": 4}  # units for each character or item
OF_TEXT = {"capitalize": 1, "lower": 1, "title": 16, "trim": 1, "upper": 1, "wordcount": 6}
PER_ITEM = 16  # of a list or an object, beside its text
SERIALIZED = 200  # a call of json.dumps
JOINED, SORTED, COMPARED, LOOKED_UP = 32, 64, 12, 64  # of an item: by join, by sort, of each level of sort
SCANNED = 1 / 64  # of a character that trim looks for


def filters_of(all_filters: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Those that templates have, of Jinja's and of our own."""
    own: dict[str, Callable[..., Any]] = {
        "join": _join,
        "replace": _replace,
        "round": _round,
        "string": _string,
        "tojson": _tojson,
    }
    made = {name: all_filters[name] for name in PLAIN}
    made |= {name: _of_items(price, all_filters[name]) for name, price in OF_ITEMS.items()}
    made |= {name: _of_text(price, all_filters[name]) for name, price in OF_TEXT.items()}
    made |= {"sort": _sort(all_filters["sort"]), "truncate": _truncate, **own}
    return {**made, LOOP: _loop, CONCAT: _concat, ADD: _add}


def text_of_any(value: Any) -> str:
    """The text of a value; that of lists and objects is paid for."""
    if isinstance(value, jinja2.Undefined):
        return ""
    if isinstance(value, (list, tuple, Mapping)):
        return _tojson(value)
    return text_of(value)


def weight(value: Any) -> int:
    """About the characters of a value and the work on its parts, without making its text."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping):
        return 2 + sum(len(str(name)) + weight(item) + PER_ITEM for name, item in value.items())
    return 2 + sum(weight(item) + PER_ITEM for item in value) if isinstance(value, (list, tuple)) else 32


def _loop(value: Any) -> Any:
    return CURRENT.get().loop(_items(value))


def _items(value: Any) -> Collection[Any]:
    if isinstance(value, (str, list, tuple, Mapping)):
        return value
    return () if value is None or isinstance(value, jinja2.Undefined) else list(value)


def _made(texts: list[str], separator: str = "") -> str:
    CURRENT.get().make(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def _concat(values: list[Any]) -> str:
    return _made([text_of_any(value) for value in values])


def _add(values: list[Any]) -> Any:
    left, right = values
    if isinstance(left, str) and isinstance(right, str):
        return _made([left, right])
    if isinstance(left, (list, tuple)) or isinstance(right, (list, tuple)):
        CURRENT.get().make(weight(left) + weight(right))
    return left + right


def _join(value: Any, separator: Any = "") -> str:
    items = _items(value)
    CURRENT.get().pay(JOINED * len(items))
    return _made([text_of_any(item) for item in items], text_of_any(separator))


def _sort(function: Any) -> Any:
    @jinja2.pass_environment
    def sorting(
        environment: jinja2.Environment,
        value: Any,
        reverse: bool = False,
        case_sensitive: bool = False,
        attribute: Any = None,
    ) -> Any:
        items = _items(value)
        parts = 0 if attribute is None else 1 + str(attribute).count(".") + str(attribute).count(",")
        levels = math.ceil(math.log2(len(items) + 1))
        CURRENT.get().pay(len(items) * (SORTED + COMPARED * levels + LOOKED_UP * parts))
        return function(environment, items, reverse, case_sensitive, attribute)

    return sorting


def _replace(value: Any, old: Any, new: Any) -> str:
    text, old, new = (text_of_any(each) for each in (value, old, new))
    CURRENT.get().make(len(text) + text.count(old) * len(new))
    return text.replace(old, new)


def _string(value: Any) -> str:
    return text_of_any(value)


def _tojson(value: Any) -> str:
    """JSON as it stands; Jinja's own escapes it for HTML."""
    if isinstance(value, jinja2.Undefined):
        return "null"
    paid = weight(value)
    CURRENT.get().make(paid)
    CURRENT.get().pay(SERIALIZED)
    text = json_text(value)
    CURRENT.get().make(max(0, len(text) - paid))  # of what JSON escapes
    return text


def _truncate(value: Any, length: int = 255, end: str = "...") -> str:
    """The first `length` characters, and the end if some are missing."""
    text = text_of_any(value)
    return text if len(text) <= length else text[: max(0, length)] + text_of(end)


def _round(value: Any, precision: int = 0) -> float:
    return round(float(value), max(-20, min(20, precision)))


def _of_items(price: int, function: Any) -> Any:
    def filtered(value: Any, *arguments: Any, **named: Any) -> Any:
        CURRENT.get().pay(price * (len(value) if isinstance(value, (str, list, tuple, Mapping)) else 1))
        return function(value, *arguments, **named)

    return filtered


def _of_text(price: int, function: Any) -> Any:
    def filtered(value: Any, *arguments: Any) -> Any:
        text = text_of_any(value)
        searched = SCANNED * sum(len(text_of(each)) for each in arguments)
        CURRENT.get().pay(int((price + searched) * len(text)))
        return function(text, *arguments)

    return filtered
