"""Sentinels, and connections to the master that they name, for which redis-py does too little.

Each redis-py client asks Sentinels in the order of the URL, and one whose host is away costs it a timeout;
kombu makes several clients for each connection to the broker. Here the one that answered last in this process
comes first.
"""

from __future__ import annotations

import copy
from typing import Any

import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.sentinel import MasterNotFoundError as AsyncMasterNotFoundError
from redis.sentinel import MasterNotFoundError

_answered: dict[str, tuple[str, int]] = {}  # service -> host and port


class Sentinels(redis.sentinel.Sentinel):
    """Thread-safe. redis-py's reorders the list that other threads read, and so loses Sentinels."""

    def discover_master(self, service_name: str) -> Any:
        asked = _last_first(self, service_name)
        try:
            found = super(Sentinels, asked).discover_master(service_name)  # type: ignore[no-untyped-call]
        except MasterNotFoundError as error:
            raise _shortened(error, asked) from None
        _answered[service_name] = _address(asked.sentinels[0])
        return found


class AsyncSentinels(redis.asyncio.sentinel.Sentinel):
    """See Sentinels."""

    async def discover_master(self, service_name: str) -> Any:
        asked = _last_first(self, service_name)
        try:
            found = await super(AsyncSentinels, asked).discover_master(service_name)
        except AsyncMasterNotFoundError as error:
            raise _shortened(error, asked) from None
        _answered[service_name] = _address(asked.sentinels[0])
        return found


class SentinelConnection(redis.sentinel.SentinelManagedConnection):
    """As redis-py's, without two faults that keep commands going to the old master.

    A connection whose response is late is kept: the next command waits on it as well, or reads that response.
    One that was closed is opened to the same server again, without a question to the Sentinels. (redis-py's
    pull request 4292 and issue 3874, both open.)
    """

    def read_response(self, *args: Any, disconnect_on_error: bool | None = True, **options: Any) -> Any:
        return super().read_response(*args, disconnect_on_error=disconnect_on_error, **options)

    def send_packed_command(self, *args: Any, **options: Any) -> None:
        if self._sock is None:
            self.connect()
        super().send_packed_command(*args, **options)  # type: ignore[no-untyped-call]


class TlsSentinelConnection(SentinelConnection, redis.sentinel.SentinelManagedSSLConnection):
    """See SentinelConnection."""


def _last_first(sentinels: Any, service_name: str) -> Any:
    """A copy with a list of its own, which redis-py begins with the one that answers."""
    last, copied = _answered.get(service_name), copy.copy(sentinels)
    copied.sentinels = sorted(sentinels.sentinels, key=lambda each: _address(each) != last)
    return copied


def _shortened(error: redis.ConnectionError, sentinels: Any) -> redis.ConnectionError:
    """One of the same kind that names each Sentinel by its address, instead of with all its options."""
    told = str(error)
    for sentinel in sentinels.sentinels:
        host, port = _address(sentinel)
        told = told.replace(str(sentinel), f"{host}:{port}")
    return type(error)(told)


def _address(sentinel: Any) -> tuple[str, int]:
    options = sentinel.connection_pool.connection_kwargs
    return options["host"], options["port"]
