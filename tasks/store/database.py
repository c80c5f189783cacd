"""The Redis of one installation: its connection, its scripts and the prefix of its keys.

A client is one of a single server, or of whichever the Sentinels say is the master at each new connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from tasks.base.redis_tls import RedisOptions
from tasks.base.sentinel_url import SentinelUrl
from tasks.base.settings import Settings
from tasks.store.scripts import Scripts


@dataclass(frozen=True, slots=True)
class Database:
    """What the stores of jobs, batches, files and keys are kept in. Thread-safe; one for each process."""

    settings: Settings
    redis: Any  # typed, every answer would be perhaps an awaitable
    scripts: Scripts

    @classmethod
    def connect(cls, settings: Settings, timeout_s: float | None = None) -> Database:
        """timeout_s: of Redis's answers; None is the one of its URL."""
        client = connect(settings, timeout_s)
        return cls(settings, client, Scripts(client, settings.key_prefix))

    @property
    def prefix(self) -> str:
        """Of all keys."""
        return self.settings.key_prefix

    @property
    def ttl_ms(self) -> int:
        """How long ended work is kept."""
        return self.settings.result_ttl_s * 1000

    def close(self) -> None:
        self.redis.close()


def connect(settings: Settings, timeout_s: float | None = None) -> redis.Redis:
    """A client that answers or fails within timeout_s, and reconnects once by itself.

    It may send a command twice when the connection broke: every script is safe to repeat.
    """
    options = RedisOptions.of(settings.redis_url)
    within_s = options.timeout_s if timeout_s is None else timeout_s
    return make_client(
        options.address,
        decode_responses=True,
        socket_timeout=within_s,
        socket_connect_timeout=within_s,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
        **options.tls,
    )


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
