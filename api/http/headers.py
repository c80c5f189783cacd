"""Headers that several parts of the gateway read or send."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers

REQUEST_ID = "x-request-id"
_SANE = re.compile(r"[A-Za-z0-9._:+/=-]{1,128}")  # fits into a line of a log, and needs no quoting there
JSON_TYPE = "application/json"
# Defaults of every response: browsers must not render, frame or cache it.
API_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def media_type(headers: Headers) -> str:
    """The Content-Type without parameters, in lower case; "" if there is none."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def given_request_id(values: Sequence[str]) -> str | None:
    """The client's own id in the headers of this name, if there is one that can be echoed and logged."""
    return values[0] if len(values) == 1 and _SANE.fullmatch(values[0]) else None


def new_request_id() -> str:
    return f"req_{uuid.uuid4().hex}"
