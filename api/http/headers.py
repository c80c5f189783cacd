"""Headers that several parts of the gateway read or send."""

from __future__ import annotations

from starlette.datastructures import Headers

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
