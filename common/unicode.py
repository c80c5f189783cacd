"""What JSON can spell and UTF-8 cannot carry."""

from __future__ import annotations

import json


def is_unicode(value: object) -> bool:
    """Whether UTF-8 can carry a value read from JSON, which can spell halves of surrogate pairs."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
