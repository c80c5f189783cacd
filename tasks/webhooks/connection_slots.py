"""How connections to receivers of webhooks are shared among owners.

An owner may begin another delivery while it holds less than a given part of what is free (the dynamic
threshold of shared-memory switches): less than an eighth of all slots, and half of those to one host or
address. One owner alone thus gets a ninth, or a third; each further one as much of what is left; and who
holds nothing finds a slot as long as one is free. Receivers that hang delay their own owners alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv6Address, ip_address

from tasks.base.errors import AddressBusy

EIGHTH, HALF = 8, 2  # parts of what is free
MOST_TO_ADDRESS = 24  # connections; one owner alone gets 8. Many hosts may be at one address, as at a CDN
V6_PREFIX = 64  # bits: what one host may have all addresses of


def share(free: int, held: int, part: int) -> int:
    """How many more of so many free slots an owner that holds some may take, as in lease_due.lua."""
    return max(0, -((part * held - free) // (part + 1)))


def network(address: str) -> str:
    """What counts as one host: an address of IPv4, the /64 of one of IPv6."""
    parsed = ip_address(address)
    if isinstance(parsed, IPv6Address):
        return f"{IPv6Address(int(parsed) >> 128 - V6_PREFIX << 128 - V6_PREFIX)}/{V6_PREFIX}"
    return str(parsed)


class AddressSlots:
    """Connections to each address, whatever names lead there. For one event loop."""

    def __init__(self) -> None:
        self._all: Counter[str] = Counter()  # by network
        self._owned: Counter[tuple[str, str]] = Counter()  # by network and owner
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def held(self, owner: str, address: str, within_s: float) -> AsyncIterator[None]:
        """A slot, waited for; raises AddressBusy where none is free in time."""
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
