"""A real Flower under clients that send too much, and too many of them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import httpx
import pytest
from tornado.httpserver import HTTPServer

from cli.stack.flower_limits import BODY_BYTES, BODY_S, CONNECTIONS, IDLE_S, bound_flower
from tasks.base.settings import Settings
from tests.support.peers.flower import flower
from tests.support.servers import RedisServer, fast_settings, free_port
from tests.support.workers import wait_until

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def port(redis_server: RedisServer) -> Iterator[int]:
    settings: Settings = fast_settings(redis_server, flower_port=free_port())
    with flower(settings):
        yield settings.flower_port


def is_well(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthcheck", timeout=30).is_success
    except httpx.TransportError:
        return False


@pytest.mark.parametrize(
    "head", [b"GET / HTTP/1.1\r\nX: ", b"POST /api/task/x HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n"]
)
def test_requests_without_end(port: int, head: bytes) -> None:
    with (
        socket.create_connection(("127.0.0.1", port), 30) as connection,
        contextlib.suppress(ConnectionError),
    ):
        connection.sendall(head)
        for _ in range(1000):
            connection.sendall(b"a" * 65_536)
        raise AssertionError("64 MB were taken")
    assert is_well(port)


def test_too_many_connections(port: int) -> None:
    with contextlib.ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            for _ in range(CONNECTIONS + 20)
        ]
        for connection in held[CONNECTIONS:]:
            assert connection.recv(1) == b""
    wait_until(lambda: is_well(port))


def test_times_and_bytes_are_those_that_tornado_is_told() -> None:
    before = HTTPServer._save_configuration()
    try:
        bound_flower()
        server = HTTPServer(lambda _: None)
        told = server.conn_params
        assert (told.header_timeout, told.body_timeout) == (IDLE_S, BODY_S)
        assert server.max_buffer_size == BODY_BYTES
    finally:
        HTTPServer._restore_configuration(before)
