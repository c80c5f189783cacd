"""Parsers for bodies, headers and query parameters that the routes check themselves, without FastAPI."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Mapping
from enum import StrEnum
from typing import TypeVar

from fastapi import Request

from api.http.errors import BadRequest, ClientGone, UnsupportedMedia
from api.http.headers import JSON_TYPE, media_type
from api.requests.caller import caller_of
from tasks.base.errors import TasksError
from tasks.schema.job_request import S, parse

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

DEFAULT_PAGE, MAX_PAGE = 20, 100
DAY_S = 24 * 3600
MOST_WAIT_S = 60  # of `Prefer: wait`: the usual timeout of proxies; clients can repeat the request
MIN_EXPIRY_S, MAX_EXPIRY_S = 3600, 30 * DAY_S  # of files, as in the OpenAI API
MAX_IDEMPOTENCY_KEY = 255  # characters
_WAIT = re.compile(r"^wait\s*=\s*(.*)$", re.IGNORECASE)


async def json_body(request: Request, kind: type[S]) -> S:
    """Parse the body with this schema. Raises UnsupportedMedia and InvalidRequest."""
    return parse(await json_bytes(request), kind)


async def optional_json_body(request: Request, kind: type[S]) -> S:
    """As json_body; no body at all is an empty object."""
    return await json_body(request, kind) if await request.body() else kind()


async def json_bytes(request: Request) -> bytes:
    """The body. Raises UnsupportedMedia if its Content-Type is not JSON."""
    if media_type(request.headers) != JSON_TYPE:
        raise UnsupportedMedia(f"Content-Type: must be {JSON_TYPE}")
    return await request.body()


def member(kind: type[E], name: str, value: str) -> E:
    """Parse a parameter as a member of an enum. Raises BadRequest, which lists the members."""
    try:
        return kind(value)
    except ValueError:
        raise BadRequest(f"{name}: must be one of {', '.join(kind)}", param=name) from None


def boolean(name: str, parameters: Mapping[str, str]) -> bool:
    """A parameter that is true or false; false if it is missing. Raises BadRequest."""
    value = parameters.get(name, "false")
    if value not in ("true", "false"):
        raise BadRequest(f"{name}: must be true or false", param=name)
    return value == "true"


async def unless_closed(request: Request, work: Awaitable[T]) -> T:
    """Await the work. Cancels it and raises ClientGone if the client closes the connection first."""
    doing = asyncio.ensure_future(work)
    closed = asyncio.ensure_future(_closed(request))
    try:
        await asyncio.wait((doing, closed), return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        closed.result()  # raises BadKey if the key was revoked
        raise ClientGone("the client closed the connection before the response")
    finally:
        doing.cancel()
        closed.cancel()
        await asyncio.gather(doing, closed, return_exceptions=True)


async def _closed(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def wait_s(request: Request) -> int | None:
    """The seconds of `Prefer: wait=N`, or None. Other preferences are ignored, as RFC 7240 requires."""
    for preference in request.headers.get("prefer", "").split(","):
        if match := _WAIT.match(preference.strip()):
            return whole_number(match[1], 0, MOST_WAIT_S, "Prefer: wait", "Prefer")
    return None


def idempotency_key(request: Request) -> str | None:
    """The Idempotency-Key header, prefixed with the owner, or None. Raises BadRequest."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= MAX_IDEMPOTENCY_KEY:
        message = f"Idempotency-Key: must have 1 to {MAX_IDEMPOTENCY_KEY} characters"
        raise BadRequest(message, param="Idempotency-Key")
    return f"{owner_of(request)}:{key}"


def whole_number(value: str, least: int, most: int, name: str, param: str | None = None) -> int:
    """Parse a whole number. Raises BadRequest, which names the parameter."""
    if re.fullmatch(r"[0-9]{1,9}", value) and least <= int(value) <= most:
        return int(value)
    raise BadRequest(f"{name}: must be a whole number from {least} to {most}", param=param or name)


def owner_of(request: Request) -> str:
    """The owner of the objects that the request creates: an API key's id, or NOBODY."""
    return caller_of(request).owner


def seen_by(request: Request) -> str | None:
    """The owner whose objects the request may read; None is all owners, if no key is used."""
    return caller_of(request).sees


def page_query(request: Request, also: str | None = None) -> tuple[int, str | None, list[tuple[str, str]]]:
    """limit, after, and the parameters whose names match `also`. Raises BadRequest for any others."""
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


def unknown_after(error: TasksError) -> BadRequest:
    """The refusal of an `after` without a place in the list, as that of an object which was dropped since."""
    return BadRequest(
        f"after: {error}; if it was dropped since, begin after an object before it in the list", param="after"
    )
