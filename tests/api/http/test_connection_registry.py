"""Which connections make room for others: addresses of a network, which a test on loopback does not have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from api.http.connection_limits import LOCAL, ConnectionRegistry, Limits, network_of

MOST = 8  # connections of all, of which one address has six


class Client:
    """A connection that notes whether it was closed to make room."""

    def __init__(self) -> None:
        self.evicted = False

    def check(self, now: float) -> None:
        pass

    def evict(self) -> None:
        self.evicted = True


def run(scenario: Callable[[Callable[[str], tuple[Client, bool]], ConnectionRegistry], None]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        connections = ConnectionRegistry(Limits(connections=MOST))

        def connect(address: str) -> tuple[Client, bool]:
            client = Client()
            return client, connections.add(client, address, loop)

        scenario(connect, connections)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9%eth0", "2001:db8:1:2::/64"),
        ("127.0.0.9", LOCAL),
        ("::1", LOCAL),
        ("::ffff:127.0.0.1", LOCAL),
        (None, LOCAL),
    ],
)
def test_whom_an_address_is_counted_for(address: str | None, network: str) -> None:
    assert network_of(address) == network


def test_one_address_leaves_a_quarter_to_others() -> None:
    def scenario(connect: Callable[[str], tuple[Client, bool]], connections: ConnectionRegistry) -> None:
        greedy = [connect("203.0.113.7") for _ in range(6)]
        for client, taken in greedy:
            assert taken
            connections.busy(client)
        assert not connect("203.0.113.7")[1]
        assert connect("198.51.100.1")[1]
        assert connect("198.51.100.2")[1]

    run(scenario)


def test_addresses_of_one_64_are_one_address() -> None:
    def scenario(connect: Callable[[str], tuple[Client, bool]], connections: ConnectionRegistry) -> None:
        for place in range(6):
            client, taken = connect(f"2001:db8::{place + 1:x}")
            assert taken
            connections.busy(client)
        assert not connect("2001:db8::ffff")[1]
        assert connect("2001:db8:0:1::1")[1]

    run(scenario)


def test_an_idle_connection_of_the_largest_makes_room() -> None:
    def scenario(connect: Callable[[str], tuple[Client, bool]], _: ConnectionRegistry) -> None:
        few = [connect("198.51.100.1")[0] for _ in range(2)]
        many = [connect("203.0.113.7")[0] for _ in range(6)]
        _, taken = connect("192.0.2.1")
        assert taken
        assert [client.evicted for client in many] == [True, *[False] * 5]
        assert not any(client.evicted for client in few)

    run(scenario)


def test_where_nothing_is_idle_nobody_is_closed() -> None:
    def scenario(connect: Callable[[str], tuple[Client, bool]], connections: ConnectionRegistry) -> None:
        clients = [connect(f"203.0.113.{place}")[0] for place in range(MOST)]
        for client in clients:
            connections.busy(client)
        assert not connect("192.0.2.1")[1]
        assert not any(client.evicted for client in clients)
        connections.closed(clients[0])
        assert connect("192.0.2.1")[1]

    run(scenario)
