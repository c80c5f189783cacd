"""Sentinels, and connections to the master that they name, for which redis-py does too little.

redis-py asks Sentinels in the order of the URL. One whose host is away costs a timeout each time, and kombu
makes several clients for each connection to the broker. Here the one that answered last in this process is
asked first.
"""

from __future__ import annotations

import copy
from typing import Any

import redis.asyncio.sentinel
import redis.sentinel

_answered: dict[str, tuple[str, int]] = {}  # service -> host and port


class Sentinels(redis.sentinel.Sentinel):
    """Thread-safe: redis-py reorders the list that other threads read, and so loses Sentinels."""

    def discover_master(self, service_name: str) -> Any:
        asked = _last_first(self, service_name)
        found = super(Sentinels, asked).discover_master(service_name)  # type: ignore[no-untyped-call]
        _answered[service_name] = _address(asked.sentinels[0])
        return found


class AsyncSentinels(redis.asyncio.sentinel.Sentinel):
    """See Sentinels."""

    async def discover_master(self, service_name: str) -> Any:
        asked = _last_first(self, service_name)
        found = await super(AsyncSentinels, asked).discover_master(service_name)
        _answered[service_name] = _address(asked.sentinels[0])
        return found


class SentinelConnection(redis.sentinel.SentinelManagedConnection):
    """Closed when a response does not come in time, as redis-py does with every other connection.

    Else the next command would wait on the old master, whoever is the master now, or read that response.
    """

    def read_response(self, *args: Any, disconnect_on_error: bool | None = True, **options: Any) -> Any:
        return super().read_response(*args, disconnect_on_error=disconnect_on_error, **options)


class TlsSentinelConnection(SentinelConnection, redis.sentinel.SentinelManagedSSLConnection):
    """See SentinelConnection."""


def _last_first(sentinels: Any, service_name: str) -> Any:
    """A copy with a list of its own, which redis-py begins with the one that answers."""
    last, copied = _answered.get(service_name), copy.copy(sentinels)
    copied.sentinels = sorted(sentinels.sentinels, key=lambda each: _address(each) != last)
    return copied


def _address(sentinel: Any) -> tuple[str, int]:
    options = sentinel.connection_pool.connection_kwargs
    return options["host"], options["port"]
