"""The open connections of a server: their number is limited, and their time limits are checked."""

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

SWEEP_S = 0.5  # between two checks of the time limits
RESERVED_FILES = 200  # descriptors kept for Redis, the file store and the log
LOCAL = "local"  # loopback and Unix sockets: one address there is everybody

REFUSED = Metric(
    "medusaq_http_connections_refused",
    "Connections that this gateway closed because of a limit, by the code of the error",
    ["code"],
    registry=REGISTRY,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client, and all of them together, may take of a server."""

    target_bytes: int = 16 * 1024  # twice a page of jobs filtered by all metadata that a job may have
    head_bytes: int = 64 * 1024  # request line and headers; beside a body its chunk sizes and trailers
    headers: int = 100  # browsers and proxies send fewer than 50
    pipelined: int = 100  # requests that wait for the answer to an earlier one of their connection
    head_s: float = 20.0  # from the first byte of a request to the end of its headers
    transfer_s: float = 60.0  # in each such period a body must advance by transfer_bytes, and an answer too
    transfer_bytes: int = 60 * 1024  # that is 1 KB/s
    discard_s: float = 30.0  # for the rest of a body whose request was answered already
    linger_s: float = 2.0  # after a refusal: closing at once would destroy it while the client still sends
    lingering: int = 64  # connections in that state; further ones close at once
    connections: int = 2000  # of all addresses: four keys with 500 open requests each
    one_address: float = 0.75  # of them at most for one address: the rest is for others


class Connection(Protocol):
    """What the check needs of a connection."""

    def check(self, now: float) -> None:
        """Close it when one of its time limits has passed."""

    def evict(self) -> None:
        """Close it, although it broke no limit."""


class Connections:
    """All of one server. Made for its first connection."""

    _of: ClassVar[weakref.WeakKeyDictionary[ServerState, Connections]] = weakref.WeakKeyDictionary()

    def __init__(self, limits: Limits) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = min(limits.connections, max(1, files - RESERVED_FILES))
        self._most_of_one = max(1, int(self.most * limits.one_address))
        self._limits = limits
        self._networks: dict[Connection, str] = {}
        self._open: Counter[str] = Counter()
        self._idle: dict[str, dict[Connection, None]] = {}  # without a request under way, longest first
        self._checked: set[Connection] = set()
        self._lingering: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, server: ServerState, limits: Limits) -> Connections:
        if server not in cls._of:
            cls._of[server] = cls(limits)
        return cls._of[server]

    def add(self, connection: Connection, address: str | None, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether there is room for it: idle connections make room, first those of who has most."""
        self._checked.add(connection)
        if self._timer is None:
            self._timer = loop.call_later(SWEEP_S, self._sweep, loop)
        network = network_of(address)
        if network != LOCAL and self._open[network] >= self._most_of_one and not self._evict(network):
            return False
        if self._open.total() >= self.most and not self._evict_of_the_largest():
            return False
        self._networks[connection] = network
        self._open[network] += 1
        self.idle(connection)
        return True

    def idle(self, connection: Connection) -> None:
        """It has no request under way now."""
        if connection in self._networks:
            self._idle.setdefault(self._networks[connection], {})[connection] = None

    def busy(self, connection: Connection) -> None:
        """It has a request under way, and is not closed to make room."""
        network = self._networks.get(connection, LOCAL)
        if (idle := self._idle.get(network)) is not None:
            idle.pop(connection, None)
            if not idle:
                del self._idle[network]

    def remove(self, connection: Connection) -> None:
        """It takes no place any more."""
        self.busy(connection)
        if (network := self._networks.pop(connection, None)) is not None:
            self._open[network] -= 1
            if not self._open[network]:
                del self._open[network]

    def closed(self, connection: Connection) -> None:
        """It is lost."""
        self.remove(connection)
        self._checked.discard(connection)
        self._lingering.discard(connection)

    def may_linger(self, connection: Connection) -> bool:
        """Whether it may stay open for a moment after a refusal; then it takes no place any more."""
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
    """Whom a remote address is counted for: of IPv6 its first 64 bits, which one customer is given."""
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
