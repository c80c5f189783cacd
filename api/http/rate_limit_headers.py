"""What is left of a key's limits, in the headers that OpenAI's clients know."""

from __future__ import annotations

import math

from tasks.records.api_key import Admission


def rate_headers(found: Admission) -> dict[str, str]:
    """Of the limits that the key has; tokens as they were when the request came."""
    headers: dict[str, str] = {}
    for what, rate in (("requests", found.requests), ("tokens", found.tokens)):
        if rate is not None:
            headers[f"x-ratelimit-limit-{what}"] = str(rate.limit)
            headers[f"x-ratelimit-remaining-{what}"] = str(rate.left)
            headers[f"x-ratelimit-reset-{what}"] = duration(rate.reset_s)
    return headers


def duration(seconds: float) -> str:
    """As there: 7s, 6m0s, 23h59m3s; rounded up."""
    whole = math.ceil(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
