"""JSON on one line without blanks, and what refuses names that are not JSON where it is read."""

from __future__ import annotations

import json
from typing import NoReturn

compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def refuse_constant(name: str) -> NoReturn:
    """As parse_constant of json.loads(): NaN and the infinities. Raises ValueError."""
    raise ValueError(f"{name} is not JSON")
