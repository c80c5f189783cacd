"""What the routes read from a request by themselves: its body, and numbers in headers and queries."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from enum import StrEnum
from typing import TypeVar

from fastapi import Request

from api.http.errors import BadRequest, ClientGone, UnsupportedMedia
from api.http.headers import JSON_TYPE, media_type
from api.requests.caller import caller_of
from tasks.schema.job_request import S, parse

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

DEFAULT_PAGE, MAX_PAGE = 20, 100
DAY_S = 24 * 3600
MOST_WAIT_S = 60  # of `Prefer: wait`: what proxies commonly allow an answer; a client may ask again
MIN_EXPIRY_S, MAX_EXPIRY_S = 3600, 30 * DAY_S  # of files, what the OpenAI API allows
MAX_IDEMPOTENCY_KEY = 255  # characters
_WAIT = re.compile(r"^wait\s*=\s*(.*)$", re.IGNORECASE)


async def json_body(request: Request, kind: type[S]) -> S:
    """The body as this schema; raises UnsupportedMedia or InvalidRequest."""
    return parse(await json_bytes(request), kind)


async def json_bytes(request: Request) -> bytes:
    """The body, declared as JSON; raises UnsupportedMedia."""
    if media_type(request.headers) != JSON_TYPE:
        raise UnsupportedMedia(f"the body must be sent as Content-Type: {JSON_TYPE}")
    return await request.body()


def member(kind: type[E], name: str, value: str) -> E:
    """What a parameter of this name stands for; raises BadRequest, which lists what it may be."""
    try:
        return kind(value)
    except ValueError:
        raise BadRequest(f"{name}: must be one of {', '.join(kind)}", param=name) from None


async def unless_closed(request: Request, work: Awaitable[T]) -> T:
    """What the work gives; raises ClientGone, with the work ended, when the connection is closed before."""
    doing = asyncio.ensure_future(work)
    closed = asyncio.ensure_future(_closed(request))
    try:
        await asyncio.wait((doing, closed), return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        closed.result()  # raises what ended it otherwise, as BadKey
        raise ClientGone("the connection was closed before the answer")
    finally:
        doing.cancel()
        closed.cancel()
        await asyncio.gather(doing, closed, return_exceptions=True)


async def _closed(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def wait_s(request: Request) -> int | None:
    """Seconds of `Prefer: wait=N`, None without it; other preferences are ignored, as RFC 7240 says."""
    for preference in request.headers.get("prefer", "").split(","):
        if match := _WAIT.match(preference.strip()):
            return whole_number(match[1], 0, MOST_WAIT_S, "Prefer: wait", "Prefer")
    return None


def idempotency_key(request: Request) -> str | None:
    """The header, if it came, among those of its owner: others may have the same. Raises BadRequest."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= MAX_IDEMPOTENCY_KEY:
        message = f"Idempotency-Key: must have 1 to {MAX_IDEMPOTENCY_KEY} characters"
        raise BadRequest(message, param="Idempotency-Key")
    return f"{owner_of(request)}:{key}"


def whole_number(value: str, least: int, most: int, name: str, param: str | None = None) -> int:
    """The number in a text; raises BadRequest that names it."""
    if re.fullmatch(r"[0-9]{1,9}", value) and least <= int(value) <= most:
        return int(value)
    raise BadRequest(f"{name}: must be a whole number from {least} to {most}", param=param or name)


def owner_of(request: Request) -> str:
    """Whose is what the request makes: an API key's, or nobody's where none is used."""
    return caller_of(request).owner


def seen_by(request: Request) -> str | None:
    """Whose things alone the request may see; None is everybody's, where no key is used."""
    return caller_of(request).sees


def page_query(request: Request, also: str | None = None) -> tuple[int, str | None, list[tuple[str, str]]]:
    """limit, after, and the parameters whose names match `also`; raises BadRequest, for any other too."""
    limit, after = DEFAULT_PAGE, None
    others: list[tuple[str, str]] = []
    for name, value in request.query_params.multi_items():
        if name == "limit":
            limit = whole_number(value, 1, MAX_PAGE, "limit")
        elif name == "after":
            after = value
        elif also is not None and re.fullmatch(also, name):
            others.append((name, value))
        else:
            raise BadRequest(f"{name}: there is no such query parameter", code="unknown_field", param=name)
    return limit, after, others
