"""Fixtures for the tests of files: a keeper over a folder of the test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tasks import file_records
from tasks.file_keeper import FileKeeper
from tasks.file_records import FileRecords
from tasks.files import make_store
from tasks.settings import Settings
from tasks.store import JobStore
from tests.files import Kept
from tests.servers import RedisServer

SCRATCH = 5  # all else is in database 0


@pytest.fixture
def kept(store: JobStore, settings: Settings) -> Iterator[Kept]:
    objects = make_store(settings.files)
    yield Kept(FileKeeper(objects, FileRecords(store)), store)
    objects.close()


@pytest.fixture
def scratch(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A database of its own, which may be emptied."""
    with redis.Redis(port=redis_server.port, db=SCRATCH, decode_responses=True) as client:
        yield client
        client.flushdb()


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer is given up after 0.2 s, and a removal tried again after that."""
    monkeypatch.setattr(file_records, "WRITER_LEASE_MS", 200)
    monkeypatch.setattr(file_records, "AGAIN_MS", 200)
