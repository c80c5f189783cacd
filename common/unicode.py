"""Lone surrogates, which JSON can contain and UTF-8 cannot encode."""

from __future__ import annotations

import json


def is_unicode(value: object) -> bool:
    """Whether a value read from JSON can be encoded as UTF-8, that is, has no lone surrogates."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
