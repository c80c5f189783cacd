"""OpenAI's x-ratelimit-* headers for an API key."""

from __future__ import annotations

import math

from tasks.records.api_key import Admission


def rate_headers(found: Admission) -> dict[str, str]:
    """The headers of the limits that the key has; tokens as counted before this request."""
    headers: dict[str, str] = {}
    for what, rate in (("requests", found.requests), ("tokens", found.tokens)):
        if rate is not None:
            headers[f"x-ratelimit-limit-{what}"] = str(rate.limit)
            headers[f"x-ratelimit-remaining-{what}"] = str(rate.left)
            headers[f"x-ratelimit-reset-{what}"] = duration(rate.reset_s)
    return headers


def duration(seconds: float) -> str:
    """Seconds in OpenAI's format, rounded up: 7s, 6m0s, 23h59m3s."""
    whole = math.ceil(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
