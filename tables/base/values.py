"""The text of values, for templates and for formats without types."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID


def text_of(value: Any) -> str:
    """A missing value is empty; lists and objects are JSON; bytes are base64."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    return json_text(value) if isinstance(value, (list, tuple, dict)) else str(value)


def json_text(value: Any) -> str:
    """Compact JSON. Numbers that JSON lacks are null; other values, such as dates, are strings."""
    try:
        return _dumps(value)
    except ValueError:
        return _dumps(_finite(value))


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    """Decimals are numbers if a double holds them exactly."""
    if isinstance(value, Decimal) and value.is_finite() and Decimal(repr(float(value))) == value:
        return float(value)
    return text_of(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def json_value(value: Any) -> Any:
    """What JSON has for a value of a program, with None for NaN, NaT and NA. Raises TypeError, one line.

    Dates, times and bytes are text, and decimals numbers if a double holds them, as in json_text(). NumPy's
    values are Python's.
    """
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Mapping):
        return {str(name): json_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if isinstance(value, (bytes, bytearray)):
        return text_of(value)
    if isinstance(value, (float, Decimal, date, time, timedelta, UUID)):
        if value != value:  # also NaT, which is a date
            return None
        if isinstance(value, float) and math.isinf(value):
            raise TypeError("JSON has no infinite numbers: replace it, or make it text")
        return value if isinstance(value, float) else _plain(value)
    if type(value).__name__ == "NAType":  # of pandas, which may not be compared
        return None
    return json_value(_python_of(value))


def _python_of(value: Any) -> Any:
    """Of a scalar or an array of NumPy."""
    if (kind := getattr(getattr(value, "dtype", None), "kind", None)) is not None:
        if kind in "mM":
            value = value.astype(f"{kind}8[us]")  # those of nanoseconds would become numbers
        if type(found := value.tolist()) is not type(value):
            return found
    raise TypeError(f"{type(value).__name__} is no type of JSON: make it text, a number or a list")


def is_missing(value: Any) -> bool:
    return value is None or value == ""
