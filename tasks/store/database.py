"""The Redis of one installation: its connection, its scripts and the prefix of its keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tasks.base.redis_tls import RedisOptions
from tasks.base.settings import Settings
from tasks.store.client import make_client
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
