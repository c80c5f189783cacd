"""A real Flower under clients that send too much, and too many of them."""

from __future__ import annotations

import contextlib
import shelve
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from flower.events import EventsState
from tornado.httpserver import HTTPServer

from cli.stack.child_specs import flower_keeps
from cli.stack.flower_limits import BODY_BYTES, BODY_S, CONNECTIONS, IDLE_S, bound_flower
from cli.stack.services import FLOWER_TASKS
from tasks.base.settings import Settings
from tasks.broker.celery_app import make_app
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


def test_tasks_are_few_and_what_earlier_releases_told_of_prompts_is_forgotten(
    settings: Settings, tmp_path: Path
) -> None:
    more, db = 50, tmp_path / "flower"
    state = EventsState(max_tasks_in_memory=100_000)
    for number in range(FLOWER_TASKS + more):
        at = {"hostname": "w", "timestamp": time.time(), "local_received": time.time(), "clock": number}
        of = {"uuid": f"job_{number}", "name": "medusaq.generate", "kwargs": "{}", **at}
        args = "'12 chars'" if number % 2 else "'secret prompt'"
        state.event({"type": "task-received", "args": args, **of})
        if number % 3 == 0:
            state.event(
                {"type": "task-failed", "exception": "code: secret words", "traceback": "secret", **of}
            )
        else:
            state.event({"type": "task-succeeded", "result": "'3 tokens, stop | secret answer'", **of})
    with shelve.open(str(db), "n") as file:
        file["events"], file["counter"] = state, dict(state.counter)
    settings = settings.model_copy(update={"flower_port": free_port()})
    url = f"http://127.0.0.1:{settings.flower_port}/api/tasks"
    with flower(settings, flower_keeps(db)):
        kept = httpx.get(url, timeout=60).json()
        assert len(kept) == FLOWER_TASKS
        assert "secret" not in str(kept)
        last = [kept[f"job_{FLOWER_TASKS + more - index}"] for index in (1, 2, 3)]
        assert {one["args"] for one in last} == {"'12 chars'", None}
        assert {one["result"] for one in last} == {"'3 tokens, stop'", None}
        assert {one["exception"] for one in last} == {"code", None}
        app = make_app(settings)
        with app.connection_for_write() as connection:
            for number in range(more):
                app.events.Dispatcher(connection).send("task-sent", uuid=f"new_{number}", name="n")
        app.close()
        wait_until(lambda: f"new_{more - 1}" in httpx.get(url, timeout=60).json())
        assert len(httpx.get(url, timeout=60).json()) == FLOWER_TASKS
        wait_until(lambda: all(b"secret" not in path.read_bytes() for path in tmp_path.glob("flower*")))
