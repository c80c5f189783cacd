"""The Range header (RFC 9110). One byte range is supported; anything else is ignored, as the RFC allows."""

from __future__ import annotations

import re

from api.http.errors import RangeNotSatisfiable

_RANGE = re.compile(r"bytes[ \t]*=[ \t]*([0-9]*)-([0-9]*)[ \t]*", re.IGNORECASE)
_MOST_DIGITS = 18  # more than any file size needs; int() rejects thousands of digits


def byte_range(header: str | None, size: int) -> range | None:
    """The requested non-empty range of an object of this size; None means the whole object.

    Raises RangeNotSatisfiable for a range outside the object.
    """
    match = _RANGE.fullmatch(header or "")
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":  # a suffix range: the last N bytes
        start, end = max(0, size - _number(match[2])), size
    else:
        start, last = _number(match[1]), _number(match[2] or "9" * _MOST_DIGITS)
        if last < start:
            return None
        end = min(last + 1, size)
    if start >= end:
        raise RangeNotSatisfiable(
            f"Range: {header} is outside the file, which has {size} bytes",
            headers={"Content-Range": f"bytes */{size}"},
        )
    return range(start, end)


def _number(digits: str) -> int:
    digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) <= _MOST_DIGITS else 10**_MOST_DIGITS
