"""Io workers over one store, on a folder of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.base.settings import Settings
from tasks.batches import leader as batch_driver
from tasks.store.jobs import JobStore
from tests.support.servers import RedisServer, fast_settings
from tests.tasks.helpers.io_workers import IoWorker, System


@pytest.fixture
def settings(redis_server: RedisServer, tmp_path: Path) -> Settings:
    return fast_settings(redis_server, files=str(tmp_path / "files"))


@pytest.fixture(autouse=True)
def short_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_driver, "RETRY_S", 0.1)


@pytest.fixture
def system(settings: Settings, store: JobStore) -> Iterator[System]:
    system = System(settings, store)
    yield system
    for io in system.io_workers:
        io.driver.stop()


@pytest.fixture
def io(system: System) -> IoWorker:
    return system.io()
