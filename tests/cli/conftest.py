"""Fixtures of the command's tests: the command itself, and a real gateway with a scripted worker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tasks.base.settings import Settings
from tests.cli.helpers.in_process import InProcessCli
from tests.cli.helpers.running import COMMAND, Cli
from tests.support.forking.forks import start
from tests.support.servers import RedisServer, fast_settings, free_port
from tests.support.workers import Workers, environment, wait_until


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """Runs the command in tmp_path; ends what a test left running, and fails for what that left."""
    runner = Cli(tmp_path)
    yield runner
    runner.close()


@pytest.fixture
def in_process(cli: Cli) -> InProcessCli:
    """As cli, without a process of its own."""
    return InProcessCli(cli)


@pytest.fixture(scope="module")
def served(redis_server: RedisServer) -> Settings:
    """The settings of `gateway`."""
    return fast_settings(redis_server, port=free_port())


@pytest.fixture(scope="module")
def worker_env() -> dict[str, str]:
    """More variables for the workers behind `gateway`."""
    return {}


@pytest.fixture(scope="module")
def gateway(
    served: Settings, worker_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of `medusaq gateway`, with one scripted model worker of four slots behind it."""
    folder = tmp_path_factory.mktemp("gateway")
    workers = Workers(folder)
    url = f"http://127.0.0.1:{served.port}"
    with (folder / "gateway.log").open("wb") as log:
        command = [sys.executable, *COMMAND, "gateway"]
        process = start(command, folder, environment(served), stdout=log, stderr=log)
    try:
        workers.model(served, env=worker_env)
        workers.io(served, worker_env)
        wait_until(lambda: _ready(url), alive=lambda: process.poll() is None)
        yield url
    finally:
        workers.close()
        process.kill()
        process.wait()


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").is_success
    except httpx.TransportError:
        return False
