"""The Range header (RFC 9110): one range of bytes. Any other, and any that is no valid range, is ignored."""

from __future__ import annotations

import re

from api.http.errors import RangeNotSatisfiable

_RANGE = re.compile(r"bytes[ \t]*=[ \t]*([0-9]*)-([0-9]*)[ \t]*", re.IGNORECASE)
_MOST_DIGITS = 18  # beyond any file, and int() refuses thousands


def byte_range(header: str | None, size: int) -> range | None:
    """The bytes asked for of an object of this size, at least one; None is the whole.

    Raises RangeNotSatisfiable for a range that holds no byte of it.
    """
    match = _RANGE.fullmatch(header or "")
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":  # the last so many
        start, end = max(0, size - _number(match[2])), size
    else:
        start, last = _number(match[1]), _number(match[2] or "9" * _MOST_DIGITS)
        if last < start:
            return None
        end = min(last + 1, size)
    if start >= end:
        raise RangeNotSatisfiable(
            f"the file has {size} bytes, and none of {header}", headers={"Content-Range": f"bytes */{size}"}
        )
    return range(start, end)


def _number(digits: str) -> int:
    digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) <= _MOST_DIGITS else 10**_MOST_DIGITS
