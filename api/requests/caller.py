"""Who sent a request."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastapi import Request

from api.requests.open_requests import OpenKey
from tasks.records.api_key import NOBODY


@dataclass(frozen=True, slots=True)
class Caller:
    """owner: whose is what they make. sees: whose things they may see; None is everybody's.

    key: what ends the request when the key is revoked; nobody's never is.
    """

    owner: str = NOBODY
    sees: str | None = None
    key: OpenKey = field(default_factory=OpenKey)


def caller_of(request: Request) -> Caller:
    """Whoever sent the request, as api/middleware/auth.py has found."""
    caller: Caller = request.state.caller
    return caller
