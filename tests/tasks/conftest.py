"""Fixtures for the tests of files and batches, each over a folder of the test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tasks import file_records
from tasks.file_keeper import FileKeeper
from tasks.file_records import FileRecords
from tasks.files import FileStore, make_store
from tasks.settings import Settings
from tasks.store import JobStore
from tests.files import Kept
from tests.tasks.client import Client


@pytest.fixture
def files(settings: Settings) -> Iterator[FileStore]:
    store = make_store(settings.files)
    yield store
    store.close()


@pytest.fixture
def kept(store: JobStore, files: FileStore) -> Kept:
    return Kept(FileKeeper(files, FileRecords(store)), store)


@pytest.fixture
def client(store: JobStore, files: FileStore) -> Client:
    return Client(store, files)


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer is given up after 0.2 s, and a removal tried again after that."""
    monkeypatch.setattr(file_records, "WRITER_LEASE_MS", 200)
    monkeypatch.setattr(file_records, "AGAIN_MS", 200)
