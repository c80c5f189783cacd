"""Clients of Redis: of one server, or of whichever the Sentinels say is the master at each new connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from tasks.base.sentinel_url import SentinelUrl


def make_client(url: str, **options: Any) -> redis.Redis:
    """Options are those of redis-py."""
    found = SentinelUrl.of(url)
    if found is None:
        return redis.Redis.from_url(url, **options)
    asking = found.finder_options(options) | {"retry": Retry(NoBackoff(), 0)}  # the next one is asked instead
    finder = redis.sentinel.Sentinel(found.hosts, sentinel_kwargs=asking)
    client: redis.Redis = finder.master_for(found.service, **found.client_options(), **options)
    return client


@asynccontextmanager
async def async_client(url: str, **options: Any) -> AsyncIterator[redis.asyncio.Redis]:
    """The same, closed with all it opened."""
    found = SentinelUrl.of(url)
    if found is None:
        async with redis.asyncio.Redis.from_url(url, **options) as client:
            yield client
        return
    asking = found.finder_options(options) | {"retry": AsyncRetry(NoBackoff(), 0)}
    finder = redis.asyncio.sentinel.Sentinel(list(found.hosts), sentinel_kwargs=asking)
    try:
        async with finder.master_for(found.service, **found.client_options(), **options) as client:
            yield client
    finally:
        for each in finder.sentinels:
            await each.aclose()
