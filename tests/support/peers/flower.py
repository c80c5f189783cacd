"""A real Flower for tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import httpx

from tasks.base.settings import Settings
from tests.support.workers import ROOT, environment, wait_until

START_LIMIT_S = 30.0


@contextmanager
def flower(settings: Settings, more: Mapping[str, str] | None = None) -> Iterator[Callable[[], list[str]]]:
    """Yields what tells the ids of the tasks that it shows. more: variables."""
    url = f"http://127.0.0.1:{settings.flower_port}"
    env = environment(settings) | {"FLOWER_UNAUTHENTICATED_API": "1"} | dict(more or {})
    process = subprocess.Popen([sys.executable, "-m", "cli", "flower"], cwd=ROOT, env=env)
    try:
        wait_until(lambda: _answers(url), START_LIMIT_S, lambda: process.poll() is None)
        yield lambda: list(httpx.get(f"{url}/api/tasks").json())
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:  # its handler raises SystemExit, which a destructor swallows
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthcheck").is_success
    except httpx.TransportError:
        return False
