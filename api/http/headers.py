"""Headers that several parts of the gateway read or send."""

from __future__ import annotations

from starlette.datastructures import Headers

JSON_TYPE = "application/json"
# Of every answer that does not say otherwise: a browser is to trust it with nothing.
API_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def media_type(headers: Headers) -> str:
    """Of a body, without parameters; "" where it is not declared."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()
