"""Fixtures for the tests of files, batches and webhooks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from tasks.base.settings import Settings
from tasks.files import records as file_records
from tasks.files.base import FileStore
from tasks.files.factory import make_store
from tasks.files.manager import FileManager
from tasks.files.records import FileRecords
from tasks.store.jobs import JobStore
from tasks.webhooks.sender import WebhookSender
from tasks.webhooks.ssrf_guard import Guard
from tasks.webhooks.store import DeliveryStore, Schedule
from tests.support.files import Kept
from tests.support.servers import RedisServer
from tests.tasks.helpers.client import Client
from tests.tasks.helpers.outbox import SOON, Start


@pytest.fixture
def files(settings: Settings) -> Iterator[FileStore]:
    store = make_store(settings.files)
    yield store
    store.close()


@pytest.fixture
def kept(store: JobStore, files: FileStore) -> Kept:
    return Kept(FileManager(files, FileRecords(store.db)), store)


@pytest.fixture
def client(store: JobStore, files: FileStore) -> Client:
    return Client(store, files)


@pytest.fixture(scope="session")
def scratch_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """It writes nothing to a file: what explores all states of a script changes millions of keys."""
    server = RedisServer(tmp_path_factory.mktemp("scratch"))
    server.start(appendonly="no")
    yield server
    server.stop()


@pytest.fixture
def scratch(scratch_server: RedisServer) -> Iterator[redis.Redis]:
    """A database which may be emptied."""
    with redis.Redis(port=scratch_server.port, decode_responses=True) as client:
        yield client
        client.flushdb()


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer is given up after 0.2 s."""
    monkeypatch.setattr(file_records, "WRITER_LEASE_MS", 200)


@pytest.fixture
def again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal is tried again after 1 s."""
    monkeypatch.setattr(file_records, "AGAIN_MS", 1000)


@pytest.fixture
def outbox(store: JobStore, settings: Settings) -> DeliveryStore:
    return DeliveryStore(store.db, settings)


@pytest.fixture
def schedule() -> Schedule:
    return SOON


@pytest.fixture
def start(store: JobStore, settings: Settings, schedule: Schedule) -> Iterator[Start]:
    """Starts senders in this process, and stops them all."""
    started: list[WebhookSender] = []

    def begin(guard: Guard | None = None, **times: Any) -> WebhookSender:
        sender = WebhookSender(settings, store.db, guard, replace(schedule, **times))
        started.append(sender)
        sender.start()
        return sender

    yield begin
    for sender in started:
        sender.stop()
