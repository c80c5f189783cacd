"""Shares the connections to webhook receivers among owners.

An owner may begin another delivery while it holds fewer slots than a given fraction of the free ones (the
dynamic threshold of shared-memory switches): an eighth of all free slots, and half of those of one host or
address. A single owner thus gets a ninth of all slots, and a third of those of a host; each further owner
gets the same fraction of the rest. An owner that holds no slot gets one as long as one is free. Receivers
that hang delay only their own owners.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv6Address, ip_address

from tasks.base.errors import AddressBusy

EIGHTH, HALF = 8, 2  # divisors of the free slots
MOST_TO_ADDRESS = 24  # connections; a single owner gets 8. Many hosts may share one address, as at a CDN
V6_PREFIX = 64  # bits: one host may own all addresses of a /64


def share(free: int, held: int, part: int) -> int:
    """Free slots that an owner of `held` slots may take, as in lease_due.lua. part: EIGHTH or HALF."""
    return max(0, -((part * held - free) // (part + 1)))


def network(address: str) -> str:
    """The key under which an address is counted: an IPv4 address, or the /64 of an IPv6 address."""
    parsed = ip_address(address)
    if isinstance(parsed, IPv6Address):
        return f"{IPv6Address(int(parsed) >> 128 - V6_PREFIX << 128 - V6_PREFIX)}/{V6_PREFIX}"
    return str(parsed)


class AddressSlots:
    """Counts connections by address, whatever names they were resolved from. For one event loop."""

    def __init__(self) -> None:
        self._all: Counter[str] = Counter()  # by network
        self._owned: Counter[tuple[str, str]] = Counter()  # by network and owner
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def held(self, owner: str, address: str, within_s: float) -> AsyncIterator[None]:
        """Hold a slot. Waits for one up to within_s; raises AddressBusy if none becomes free."""
        to = network(address)
        try:
            async with asyncio.timeout(within_s):
                while not share(MOST_TO_ADDRESS - self._all[to], self._owned[to, owner], HALF):
                    await self._freed.wait()
        except TimeoutError:
            raise AddressBusy(
                f"nothing was sent: other deliveries to its address took all connections for {within_s:g} s"
            ) from None
        self._add(to, owner, 1)
        try:
            yield
        finally:
            self._add(to, owner, -1)
            self._freed.set()
            self._freed = asyncio.Event()

    def _add(self, to: str, owner: str, count: int) -> None:
        self._all[to] += count
        self._owned[to, owner] += count
        self._all, self._owned = +self._all, +self._owned  # without those that are zero
