"""Figures that a real worker shows by itself: the same as gateways show, also while Redis is away."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress

import httpx
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tasks.base.settings import Settings
from tasks.base.telemetry.metrics_server import CONNECTIONS, HEAD_BYTES, MetricsServer
from tasks.store.jobs import JobStore
from tasks.store.metrics_store import MetricsStore
from tests.support.servers import RedisServer, fast_settings, free_port
from tests.support.workers import Workers, wait_until
from tests.tasks.helpers.records import ended, queued

pytestmark = pytest.mark.stack
Series = tuple[str, frozenset[tuple[str, str]]]


def of(families: Iterable[Metric]) -> dict[Series, float]:
    return {(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples}


def shown(settings: Settings) -> dict[Series, float]:
    answer = httpx.get(
        f"http://127.0.0.1:{settings.metrics_port}/metrics", trust_env=False
    ).raise_for_status()
    return of(text_string_to_metric_families(answer.text))


def is_shown(settings: Settings) -> bool:
    try:
        return bool(shown(settings))
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("kind", ["model", "io"])
def test_the_series_are_those_of_the_gateways_and_outlive_redis(
    own_redis: RedisServer, workers: Workers, kind: str
) -> None:
    settings = fast_settings(own_redis).model_copy(update={"metrics_address": f"127.0.0.1:{free_port()}"})
    store = JobStore(settings)
    worker = workers.model(settings) if kind == "model" else workers.io(settings)
    wait_until(lambda: is_shown(settings), alive=lambda: worker.process.poll() is None, report=worker.text)
    metrics_store = MetricsStore(store.db)
    wait_until(lambda: bool(metrics_store.read()))
    [left] = metrics_store.read()
    assert of(left.labelled()).keys() <= shown(settings).keys()
    assert {name for name, _ in of(left.labelled())} == {name for name, _ in shown(settings)}
    failures = "medusaq_redis_failures_total", frozenset({("worker", left.worker)})
    before = shown(settings)[failures]
    own_redis.stop()
    wait_until(lambda: shown(settings)[failures] > before)
    store.close()


def test_a_port_that_is_in_use_costs_only_the_metrics(
    settings: Settings, store: JobStore, workers: Workers
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        worker = workers.model(settings.model_copy(update={"metrics_address": f"127.0.0.1:{port}"}))
        assert ended(store, queued(store, "hi")).result
        assert f"no metrics on 127.0.0.1:{port}, gateways have them: " in worker.text()


@pytest.fixture
def listening(settings: Settings) -> Iterator[Settings]:
    settings = settings.model_copy(update={"metrics_address": f"127.0.0.1:{free_port()}"})
    server = MetricsServer(settings, "worker", "w")
    server.start()
    yield settings
    server.stop()


def connected(settings: Settings) -> socket.socket:
    return socket.create_connection(("127.0.0.1", settings.metrics_port), 30)


def test_headers_without_end(listening: Settings) -> None:
    with connected(listening) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        with suppress(ConnectionError):
            for _ in range(1000):
                connection.sendall(b"a" * 65_536)
            raise AssertionError("64 MB were taken")
    assert shown(listening)


def test_headers_that_are_too_long_are_told_so(listening: Settings) -> None:
    with connected(listening) as connection:
        connection.sendall((b"GET /metrics HTTP/1.1\r\nX: " + b"a" * HEAD_BYTES)[:HEAD_BYTES])
        assert connection.recv(100).startswith(b"HTTP/1.0 431 ")


def test_headers_that_come_slowly(listening: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.base.telemetry.metrics_server.ANSWER_S", 0.5)
    with connected(listening) as connection, suppress(ConnectionError):
        for _ in range(200):
            connection.sendall(b"G")
            time.sleep(0.05)  # a limit on time is under test
        raise AssertionError("they were waited for")
    assert shown(listening)


def test_connections_that_ask_nothing(listening: Settings) -> None:
    """No more threads than connections may be open; the others are closed, and room comes back."""
    before = threading.active_count()
    with ExitStack() as stack:
        held = [stack.enter_context(connected(listening)) for _ in range(CONNECTIONS + 50)]
        for connection in held[CONNECTIONS:]:
            assert connection.recv(1) == b""
        assert threading.active_count() <= before + CONNECTIONS
    wait_until(lambda: is_shown(listening))


def test_clients_that_leave_are_no_traceback(
    listening: Settings, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("INFO")
    connected(listening).close()
    wait_until(lambda: "metrics were not sent to 127.0.0.1" in caplog.text)
    assert "Traceback" not in caplog.text
    assert "Traceback" not in capfd.readouterr().err


def test_nothing_listens_unless_it_is_told_to(settings: Settings) -> None:
    assert settings.metrics_address is None
    before = threading.enumerate()
    server = MetricsServer(settings, "worker", "w")
    server.start()
    assert threading.enumerate() == before
    server.stop()
