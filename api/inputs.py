"""What the routes read from a request by themselves: its body, and numbers in headers and queries."""

from __future__ import annotations

import re

from fastapi import Request

from api.errors import BadRequest, UnsupportedMedia
from api.schemas import S, parse
from tasks.settings import Settings

_WAIT = re.compile(r"^wait\s*=\s*(.*)$", re.IGNORECASE)


async def json_body(request: Request, kind: type[S]) -> S:
    """The body as this schema; raises UnsupportedMedia or BadRequest."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedMedia("the body must be sent as Content-Type: application/json")
    return parse(await request.body(), kind)


def wait_s(request: Request, settings: Settings) -> int | None:
    """Seconds of `Prefer: wait=N`, None without it; other preferences are ignored, as RFC 7240 says."""
    for preference in request.headers.get("prefer", "").split(","):
        if match := _WAIT.match(preference.strip()):
            return whole_number(match[1], 0, settings.max_wait_s, "Prefer: wait", "Prefer")
    return None


def whole_number(value: str, least: int, most: int, name: str, param: str | None = None) -> int:
    """The number in a text; raises BadRequest that names it."""
    if re.fullmatch(r"[0-9]{1,9}", value) and least <= int(value) <= most:
        return int(value)
    raise BadRequest(f"{name}: must be a whole number from {least} to {most}", param=param or name)
