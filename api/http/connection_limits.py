"""The open connections of a server: limits their number, and enforces their timeouts."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, Protocol

from prometheus_client import Counter as Metric
from uvicorn.server import ServerState

from tasks.base.telemetry.metrics import REGISTRY

SWEEP_S = 0.5  # interval of the timeout checks
RESERVED_FILES = 200  # descriptors kept for Redis, the file store and the log
LOCAL = "local"  # loopback and Unix sockets, where all clients share one address

REFUSED = Metric(
    "medusaq_http_connections_refused",
    "Connections that this gateway closed because of a limit, by the code of the error",
    ["code"],
    registry=REGISTRY,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one client and of all clients together."""

    target_bytes: int = 16 * 1024  # twice a page of jobs filtered by all metadata that a job may have
    head_bytes: int = 64 * 1024  # request line and headers; also chunk framing and trailers
    headers: int = 100  # browsers and proxies send fewer than 50
    pipelined: int = 100  # requests that wait for the answer to an earlier one of their connection
    head_s: float = 20.0  # from the first byte of a request to the end of its headers
    transfer_s: float = 60.0  # each such period must move transfer_bytes of a request body or response
    transfer_bytes: int = 60 * 1024  # that is 1 KB/s
    discard_s: float = 30.0  # for the rest of a body whose request was already answered
    linger_s: float = 2.0  # after an error response: an immediate close could discard it before it is read
    lingering: int = 64  # connections in that state; further ones close immediately
    connections: int = 2000  # all addresses together: four keys with 500 open requests each
    one_address: float = 0.75  # largest share of them for one address


class Connection(Protocol):
    """The interface that the registry needs."""

    def check(self, now: float) -> None:
        """Close the connection if one of its timeouts has passed."""

    def evict(self) -> None:
        """Close an idle connection to make room for another."""


class ConnectionRegistry:
    """The connections of one server."""

    _of: ClassVar[weakref.WeakKeyDictionary[ServerState, ConnectionRegistry]] = weakref.WeakKeyDictionary()

    def __init__(self, limits: Limits) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.max_connections = min(limits.connections, max(1, files - RESERVED_FILES))
        self._max_per_address = max(1, int(self.max_connections * limits.one_address))
        self._limits = limits
        self._network_of: dict[Connection, str] = {}
        self._open: Counter[str] = Counter()
        self._idle: dict[str, dict[Connection, None]] = {}  # without a request in flight, longest idle first
        self._checked: set[Connection] = set()
        self._lingering: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, server: ServerState, limits: Limits) -> ConnectionRegistry:
        if server not in cls._of:
            cls._of[server] = cls(limits)
        return cls._of[server]

    def add(self, connection: Connection, address: str | None, loop: asyncio.AbstractEventLoop) -> bool:
        """Register a connection; False if the limits allow none.

        Idle connections are closed to make room, first those of the network with the most connections.
        """
        self._checked.add(connection)
        if self._timer is None:
            self._timer = loop.call_later(SWEEP_S, self._sweep, loop)
        network = network_of(address)
        if network != LOCAL and self._open[network] >= self._max_per_address and not self._evict(network):
            return False
        if self._open.total() >= self.max_connections and not self._evict_of_the_largest():
            return False
        self._network_of[connection] = network
        self._open[network] += 1
        self.idle(connection)
        return True

    def idle(self, connection: Connection) -> None:
        """Mark a connection as having no request in flight, so that it may be evicted."""
        if connection in self._network_of:
            self._idle.setdefault(self._network_of[connection], {})[connection] = None

    def busy(self, connection: Connection) -> None:
        """Mark a connection as having a request in flight, so that it is not evicted."""
        network = self._network_of.get(connection, LOCAL)
        if (idle := self._idle.get(network)) is not None:
            idle.pop(connection, None)
            if not idle:
                del self._idle[network]

    def remove(self, connection: Connection) -> None:
        """Stop counting a connection against the limits."""
        self.busy(connection)
        if (network := self._network_of.pop(connection, None)) is not None:
            self._open[network] -= 1
            if not self._open[network]:
                del self._open[network]

    def closed(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self.remove(connection)
        self._checked.discard(connection)
        self._lingering.discard(connection)

    def may_linger(self, connection: Connection) -> bool:
        """Whether a rejected connection may stay open briefly; if so, it no longer counts."""
        if len(self._lingering) >= self._limits.lingering:
            return False
        self.remove(connection)
        self._lingering.add(connection)
        return True

    def _evict_of_the_largest(self) -> bool:
        network = max(self._idle, key=self._open.__getitem__, default=None)
        return network is not None and self._evict(network)

    def _evict(self, network: str) -> bool:
        for connection in self._idle.get(network, {}):
            self.remove(connection)
            connection.evict()
            return True
        return False

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in list(self._checked):
            connection.check(now)
        self._timer = loop.call_later(SWEEP_S, self._sweep, loop) if self._checked else None


def network_of(address: str | None) -> str:
    """The key under which an address is counted; for IPv6 its /64, the usual allocation of one customer."""
    if address is None:
        return LOCAL
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or found
    if found.is_loopback:
        return LOCAL
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
