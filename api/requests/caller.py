"""Who sent a request."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastapi import Request

from api.requests.open_requests import OpenKey
from tasks.records.api_key import NOBODY


@dataclass(frozen=True, slots=True)
class Caller:
    """owner: owner of the objects that the request creates. sees: owner of the objects that it may read;
    None is all owners. key: ends the request when the API key is revoked.
    """

    owner: str = NOBODY
    sees: str | None = None
    key: OpenKey = field(default_factory=OpenKey)


def caller_of(request: Request) -> Caller:
    """The caller, as determined by api/middleware/auth.py."""
    caller: Caller = request.state.caller
    return caller
