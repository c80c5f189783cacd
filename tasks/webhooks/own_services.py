"""Where the stack itself listens, which no webhook may reach, whatever allows its address.

The services trust what comes from this machine: Redis asks for no password under `medusaq up`, a gateway
without keys for none.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from tasks.base.redis_tls import RedisOptions
from tasks.base.sentinel_url import SentinelUrl
from tasks.base.setting_names import METRICS_PORTS
from tasks.base.settings import Settings

REDIS_PORT = 6379
HOLD_V4 = (ip_network("::/96"), ip_network("::ffff:0:0:0/96"))  # compatible, and translated (SIIT)
NAT64 = ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class OwnServices:
    """ports: on any address of this machine. redis: its host, or Sentinels, with their ports, wherever."""

    ports: frozenset[int] = frozenset()
    redis: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, settings: Settings) -> OwnServices:
        url = RedisOptions.of(settings.redis_url).address
        sentinels = SentinelUrl.of(url)
        if sentinels is None:
            parts = urlsplit(url)
            redis: tuple[tuple[str, int], ...] = ((parts.hostname or "localhost", parts.port or REDIS_PORT),)
        else:
            redis = sentinels.hosts
        metrics = (int(port) for port in os.environ.get(METRICS_PORTS, "").split(",") if port)
        ours = {settings.port, settings.flower_port, settings.metrics_port, *(port for _, port in redis)}
        return cls(frozenset({*ours, *metrics} - {0}), redis)

    def has(self, address: str, port: int) -> bool:
        """Whether a service listens there, apart from a Redis on another machine."""
        return port in self.ports and leads_here(address)

    def redis_hosts(self, port: int) -> list[str]:
        """The hosts on which Redis listens on this port."""
        return [host for host, own in self.redis if own == port]


def leads_here(text: str) -> bool:
    """Whether a connection to the address ends at this machine, in whatever notation of IPv6 it is."""
    address = ip_address(text.partition("%")[0])
    return any(
        each.is_loopback or each.is_unspecified or is_own(str(each)) for each in (address, *embedded(address))
    )


NONE = OwnServices()


def embedded(address: IPv4Address | IPv6Address) -> list[IPv4Address]:
    """The IPv4 addresses embedded in an IPv6 address: mapped, compatible, translated, NAT64, 6to4, Teredo."""
    if isinstance(address, IPv4Address):
        return []
    last = IPv4Address(int(address) & 0xFFFFFFFF)
    found = [address.ipv4_mapped, address.sixtofour, address.teredo[1] if address.teredo else None]
    holds_last = address in NAT64 or any(address in network for network in HOLD_V4)
    return [each for each in (*found, last if holds_last else None) if each is not None]


def is_own(text: str) -> bool:
    """Whether this machine has the address: then a socket connected to it has the same local address.

    Connecting a UDP socket sends nothing.
    """
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect((text, 9))
            return ip_address(asked.getsockname()[0]) == ip_address(text)
    except OSError:  # no route
        return False
