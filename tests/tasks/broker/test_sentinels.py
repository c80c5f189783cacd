"""Sentinels are asked beginning with the one that answered last, and a master that hangs is left."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import redis

from tasks.broker import sentinels as module
from tasks.broker.celery_app import make_app
from tasks.broker.sentinels import Sentinels
from tasks.store.database import async_client, connect, make_client
from tests.support.peers.sentinels import FAILOVER_LIMIT_S, SERVICE
from tests.support.peers.sentinels import Sentinels as Peers
from tests.support.servers import fast_settings
from tests.support.workers import wait_until

pytestmark = pytest.mark.stack
TIMEOUT_S = 2.0
IDLE = 3


class Silent:
    """Never answers, as a Sentinel whose host is away. asked: the connections to it so far."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.port, self.asked = listener.getsockname()[1], 0

    def take(self) -> None:
        with ExitStack() as taken, suppress(OSError):
            while True:
                taken.enter_context(self._listener.accept()[0])
                self.asked += 1


@pytest.fixture
def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Peers]:
    monkeypatch.setattr(module, "_answered", {})
    made = Peers(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.close()


@contextmanager
def silent() -> Iterator[Silent]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Silent(listener)
        taking = threading.Thread(target=made.take)
        taking.start()
        try:
            yield made
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            taking.join()


def behind(away: Silent, peers: Peers) -> str:
    """The URL with the silent one first."""
    return peers.url.replace("@", f"@127.0.0.1:{away.port},", 1)


async def pings(url: str) -> bool:
    """As a subscription's client, whose answers have no limit."""
    async with async_client(url, socket_connect_timeout=TIMEOUT_S) as client:
        return bool(await client.ping())


def test_one_that_is_away_is_asked_once_by_all_clients_of_a_process(peers: Peers) -> None:
    with silent() as away:
        url = behind(away, peers)
        for _ in range(3):
            client = make_client(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
            assert client.ping()
            client.close()
        settings = fast_settings(peers.master, redis_url=url)
        with make_app(settings) as app, app.connection_for_read() as connection:
            assert connection.default_channel.client.ping()
        assert asyncio.run(pings(url))
        assert away.asked == 1


def test_a_subscription_passes_over_one_that_is_away(peers: Peers) -> None:
    with silent() as away:
        assert asyncio.run(pings(behind(away, peers)))
        assert away.asked == 1


def test_a_master_that_hangs_is_left_for_the_next_one(peers: Peers) -> None:
    """Its idle connections stay open; one of them waits in vain, and after it none."""
    client = connect(fast_settings(peers.master, redis_url=peers.url), TIMEOUT_S)
    pool = client.connection_pool
    for connection in [pool.get_connection() for _ in range(IDLE)]:
        pool.release(connection)
    asked = make_client(peers.url).connection_pool.sentinel_manager
    peers.master.freeze()
    try:
        wait_until(lambda: _master(asked) == peers.replica.port, FAILOVER_LIMIT_S)
        with pytest.raises(redis.TimeoutError):
            client.ping()
        assert client.ping()
        taken = [pool.get_connection() for _ in range(IDLE)]
        assert {connection.port for connection in taken} == {peers.replica.port}
        for connection in taken:
            pool.release(connection)
        client.close()
    finally:
        peers.master.thaw()


def test_a_command_that_is_repeated_goes_to_the_next_master(peers: Peers) -> None:
    """redis-py repeats it on its connection, which it has closed."""
    client = connect(fast_settings(peers.master, redis_url=peers.url), TIMEOUT_S)
    connection = client.connection_pool.get_connection()
    assert connection.port == peers.master.port
    peers.fail_over()
    asked = make_client(peers.url).connection_pool.sentinel_manager
    wait_until(lambda: _master(asked) == peers.replica.port, FAILOVER_LIMIT_S)
    connection.disconnect()
    connection.send_command("PING")
    assert connection.read_response() == "PONG"
    assert connection.port == peers.replica.port
    client.connection_pool.release(connection)
    client.close()


def test_no_sentinel_is_forgotten(peers: Peers) -> None:
    """redis-py's own list has one twice and another never, once two threads have found the same."""
    with silent() as away:
        client = make_client(behind(away, peers), socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
        found = client.connection_pool.sentinel_manager
        assert isinstance(found, Sentinels)
        before = list(found.sentinels)
        assert _master(found) == peers.master.port
        assert found.sentinels == before
        client.close()


def _master(sentinels: Sentinels) -> int:
    """Its port; 0 while there is none."""
    try:
        return int(sentinels.discover_master(SERVICE)[1])
    except redis.ConnectionError:
        return 0
