"""The Redis of one installation: its connection, its scripts and the prefix of its keys.

A client is one of a single server, or of whichever the Sentinels say is the master at each new connection.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from tasks.base.redis_tls import RedisOptions
from tasks.base.sentinel_url import SentinelUrl
from tasks.base.settings import Settings
from tasks.broker.sentinels import AsyncSentinels, SentinelConnection, Sentinels, TlsSentinelConnection
from tasks.store.scripts import Scripts, answering

LIST = ("CLIENT", "LIST")  # as two words: redis-py parses all of the answer to the one command
_NAME = re.compile(r" name=(\S*)")


@dataclass(frozen=True, slots=True)
class Database:
    """What the stores of jobs, batches, files and keys are kept in. Thread-safe; one for each process.

    name: of its connections, by which Redis lists them; empty for none.
    """

    settings: Settings
    redis: Any  # typed, every answer would be perhaps an awaitable
    scripts: Scripts
    name: str = ""

    @classmethod
    def connect(cls, settings: Settings, timeout_s: float | None = None, name: str = "") -> Database:
        """timeout_s: of Redis's answers; None is the one of its URL."""
        client = connect(settings, timeout_s, name)
        return cls(settings, client, Scripts(client, settings.key_prefix), name)

    @property
    def prefix(self) -> str:
        """Of all keys."""
        return self.settings.key_prefix

    @property
    def ttl_ms(self) -> int:
        """How long ended work is kept."""
        return self.settings.result_ttl_s * 1000

    def is_listed(self) -> bool:
        """Whether Redis lists connections by name, this one among them. Raises StoreUnavailable.

        Not where the user may not ask for it, nor behind a proxy that shares its connections.
        """
        with answering():
            try:
                return self.name in listed_names(self.redis.execute_command(*LIST))
            except redis.ResponseError:
                return False

    def close(self) -> None:
        self.redis.close()


def connect(settings: Settings, timeout_s: float | None = None, name: str = "") -> redis.Redis:
    """A client that answers or fails within timeout_s, and reconnects once by itself.

    It may send a command twice when the connection broke: every script is safe to repeat.
    name: of its connections, if Redis takes it.
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
        redis_connect_func=partial(_begin, name) if name else None,
        **options.tls,
    )


def _begin(name: str, connection: Any) -> None:
    """Log in as always, and name the connection: redis-py's own option fails where that is refused."""
    connection.on_connect()
    connection.send_command("CLIENT", "SETNAME", name)
    with suppress(redis.ResponseError):
        connection.read_response()


def listed_names(answer: str) -> frozenset[str]:
    """The names of the connections that Redis answered LIST with."""
    return frozenset(_NAME.findall(answer)) - {""}


def make_client(url: str, **options: Any) -> redis.Redis:
    """Options are those of redis-py."""
    found = SentinelUrl.of(url)
    if found is None:
        return redis.Redis.from_url(url, **options)
    asking = found.finder_options(options) | {"retry": Retry(NoBackoff(), 0)}  # the next one is asked instead
    finder = Sentinels(found.hosts, sentinel_kwargs=asking)
    options["connection_class"] = TlsSentinelConnection if found.tls else SentinelConnection
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
    asking.setdefault("socket_timeout", options.get("socket_connect_timeout"))  # a subscription has none
    finder = AsyncSentinels(list(found.hosts), sentinel_kwargs=asking)
    try:
        async with finder.master_for(found.service, **found.client_options(), **options) as client:
            yield client
    finally:
        for each in finder.sentinels:
            await each.aclose()
