"""The text of values, for templates and for formats without types."""

from __future__ import annotations

import base64
import json
import math
from decimal import Decimal
from typing import Any


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


def is_missing(value: Any) -> bool:
    return value is None or value == ""
