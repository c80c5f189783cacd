"""kombu's Redis transports, without acknowledgements in Redis and with one client for each channel.

kombu stores each message that it reads in Redis until it is acknowledged: two round trips for every task. A
message here is only a notice that work waits: leases and the reconciler find work whose worker or message is
lost, so what was read is counted in memory alone, and no process puts back what another one has read.

kombu makes a client for every message that it publishes. redis-py fills a table of all commands' parsers each
time, which takes longer than the command.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from kombu.transport import TRANSPORT_ALIASES, redis

from tasks.broker.sentinels import SentinelConnection, Sentinels, TlsSentinelConnection


class LightChannel:
    """Base of the channels. The client is thread-safe: its connections are its pool's."""

    ack_emulation = False
    do_restore = False  # at the end of a connection: tasks of threads go on, and hold their leases
    _made: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:
        channel: Any = super()
        if asynchronous:  # of the one connection that the event loop reads, which kombu keeps
            return channel._create_client(asynchronous=True)
        pool = self.pool  # type: ignore[attr-defined]  # a new one after a lost connection
        if self._made is None or self._made.connection_pool is not pool:
            self._made = channel._create_client()
        return self._made


class Channel(LightChannel, redis.Channel):  # type: ignore[misc]  # kombu has no types
    """Of a single server."""


class SentinelChannel(LightChannel, redis.SentinelChannel):  # type: ignore[misc]
    """Of the master that Sentinels name."""

    connection_class = SentinelConnection
    connection_class_ssl = TlsSentinelConnection

    def _sentinel_managed_pool(self, asynchronous: bool = False) -> Any:
        """As kombu's, with Sentinels of our own."""
        options = self._connparams(asynchronous)
        one = options.pop("host"), options.pop("port")
        urls = [urlsplit(url) for url in self.connection.client.alt]  # empty for a single Sentinel
        hosts = [(url.hostname, url.port) for url in urls] or [one]
        sentinels = Sentinels(hosts, sentinel_kwargs=self.sentinel_kwargs, **options)
        return sentinels.master_for(self.master_name).connection_pool


class Transport(redis.Transport):  # type: ignore[misc]
    """See Channel."""

    Channel = Channel


class SentinelTransport(redis.SentinelTransport):  # type: ignore[misc]
    """See SentinelChannel."""

    Channel = SentinelChannel


def register() -> None:
    """Have kombu use these transports for the URLs of Redis and of Sentinels."""
    single, sentinels = (f"{__name__}:{each.__name__}" for each in (Transport, SentinelTransport))
    TRANSPORT_ALIASES.update(redis=single, rediss=single, sentinel=sentinels)
