"""A real gateway process for the tests of one module, and one scripted worker behind it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from tasks.base.settings import Settings
from tests.support.forking.forks import start
from tests.support.servers import RedisServer, fast_settings, free_port
from tests.support.workers import ROOT, Workers, environment, wait_until

UVICORN = [
    sys.executable,
    "-m",
    "uvicorn",
    "tests.support.tuned:create_app",
    "--factory",
    "--host",
    "127.0.0.1",
]
BOUNDED = ["--http", "api.http.bounded_protocol:BoundedHttp", "--ws", "none"]
BODY_LIMIT = 4096


class GatewayProcess:
    """uvicorn with the factory, as `medusaq gateway` runs it; `http` is a client to it.

    options: more of uvicorn's. socket: a Unix socket to listen on, in place of a port. env: more variables.
    """

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        *options: str,
        socket: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        port = free_port()
        self.log = folder / f"gateway{port}.log"
        with self.log.open("wb") as out:
            self._process = start(
                [
                    *UVICORN,
                    *BOUNDED,
                    "--port",
                    str(port),
                    *options,
                    *(["--uds", str(socket)] if socket else []),
                ],
                ROOT,
                {**environment(settings), **(env or {})},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.pid = self._process.pid
        self._socket = socket
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        transport = httpx.HTTPTransport(uds=str(socket)) if socket else None
        self.http = httpx.Client(base_url=self.url, timeout=60, transport=transport)
        wait_until(self._answers, alive=lambda: self._process.poll() is None, report=self.log.read_text)

    def stop(self) -> int:
        self.http.close()
        self._process.terminate()
        return self._process.wait(10)

    def _answers(self) -> bool:
        if self._socket and "running on unix socket" not in self.log.read_text():
            return False  # httpcore leaves sockets open that reach nobody
        try:
            return self.http.get("/healthz").status_code == 200
        except httpx.TransportError:
            return False


@pytest.fixture(scope="module")
def gateway_settings(redis_server: RedisServer) -> Settings:
    """Replaces `settings` for the tests of a module, which share a gateway."""
    return fast_settings(redis_server, max_body_bytes=BODY_LIMIT)


@pytest.fixture(scope="module")
def gateway_env() -> dict[str, str]:
    """More variables for the gateway."""
    return {}


@pytest.fixture(scope="module")
def gateway(
    gateway_settings: Settings, gateway_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    process = GatewayProcess(gateway_settings, tmp_path_factory.mktemp("gateway"), env=gateway_env)
    yield process
    assert process.stop() in (0, -15)


@pytest.fixture(scope="module")
def model_worker(gateway_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    workers = Workers(tmp_path_factory.mktemp("workers"))
    workers.model(gateway_settings)
    yield workers
    workers.close()


@pytest.fixture(scope="module")
def worker_with_heads(
    gateway_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workers]:
    workers = Workers(tmp_path_factory.mktemp("workers"))
    workers.model(gateway_settings, env={"SCRIPTED_DRAFT_SOURCES": "medusa,lookup"})
    yield workers
    workers.close()


@pytest.fixture
def http(gateway: GatewayProcess) -> httpx.Client:
    return gateway.http


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[OpenAI]:
    """The official client, unchanged but for its address; it repeats nothing by itself."""
    with OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0, timeout=60) as client:
        yield client
