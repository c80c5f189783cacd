"""What the proxy does to those on both sides of it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.chaos.faults.proxy import Mode, Proxy
from tests.support.workers import wait_until


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that says everything again."""

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(100):
                connection.sendall(data)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    proxy = Proxy(echo)
    yield proxy
    proxy.close()


def connected(proxy: Proxy) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", proxy.port), 10)
    connection.sendall(b"hello")
    assert connection.recv(100) == b"hello"
    return connection


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(100) == b""
    except ConnectionResetError:
        return True


def leads_nowhere(proxy: Proxy) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", proxy.port), 10) as connection:
            return ended(connection)
    except ConnectionError:  # the reset was faster
        return True


@pytest.mark.parametrize("mode", [Mode.PASS, Mode.DELAY])
def test_everything_comes_through(proxy: Proxy, mode: Mode) -> None:
    with connected(proxy) as connection:
        proxy.set(mode)
        connection.sendall(b"again")
        assert connection.recv(100) == b"again"


def test_connections_are_reset_and_new_ones_too(proxy: Proxy) -> None:
    with connected(proxy) as connection:
        proxy.set(Mode.DROP)
        assert ended(connection)
        assert leads_nowhere(proxy)
        proxy.set(Mode.PASS)
        connected(proxy).close()


def test_what_is_swallowed_is_lost_with_its_connection(proxy: Proxy) -> None:
    with connected(proxy) as connection:
        proxy.set(Mode.BLACK_HOLE)
        connection.sendall(b"lost")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(100)
        connection.settimeout(10)
        wait_until(lambda: bool(proxy._doomed))
        proxy.set(Mode.PASS)
        assert ended(connection)


def test_a_server_that_is_away() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = Proxy(probe.getsockname()[1])
        assert leads_nowhere(nobody)
        nobody.close()
