"""One stack with the real engine, and one browser, for the tests of the console."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.conftest import GatewayProcess
from tests.integration.console.stack import CHROMIUM, browser, page_of
from tests.integration.default_model import serving
from tests.support.servers import RedisServer, fast_settings


@pytest.fixture(scope="module")
def console(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    folder = tmp_path_factory.mktemp("console")
    settings = fast_settings(redis_server, lease_ms=10_000, files=str(folder / "files"))
    with serving(settings, folder, io=True) as gateway:
        yield gateway


@pytest.fixture(scope="module")  # its event loop runs until it ends, and there can be one
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with browser() as opened:
        yield opened


@pytest.fixture(params=[1440, pytest.param(390, marks=pytest.mark.thorough)])
def page(console: GatewayProcess, chromium: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """At the end the browser has complained of nothing, the policy included."""
    opened = page_of(chromium, console.url, request.param)
    yield opened
    assert opened.problems == []
    opened.context.close()
