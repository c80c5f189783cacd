"""One key's batch beside another key's that are made to hold it up."""

from __future__ import annotations

import threading
import time

import pytest

from tasks.base.settings import Settings
from tasks.records.api_key import Limits
from tasks.records.batch import BatchStatus, Ending, NewBatch
from tasks.schema.openai_requests import COMPLETIONS
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tests.support.workers import Workers
from tests.tasks.helpers.client import Client, line

LIMIT_S = 15.0  # for what takes 0.3 s alone, on a machine that is busy with other tests
LINES = 40_000

pytestmark = pytest.mark.stack


@pytest.fixture
def owners(store: JobStore) -> tuple[str, str]:
    """Of an honest key, and of another."""
    keys = KeyStore(store.db)
    honest, other = (keys.create(name, Limits())[0].id for name in ("honest", "other"))
    return honest, other


def one_line(client: Client, owner: str) -> float:
    began = time.monotonic()
    batch = client.end(client.create([line(0)], owner=owner))
    assert batch.status is BatchStatus.COMPLETED
    return time.monotonic() - began


def test_cancelled_batches_of_blank_lines_hold_nobody_up(
    client: Client, settings: Settings, workers: Workers, owners: tuple[str, str]
) -> None:
    honest, other = owners
    workers.model(settings)
    workers.io(settings)
    one_line(client, honest)
    file_id = client.upload_bytes(b"\n" * 12_000_000)
    for _ in range(10):
        batch = client.batches.create(NewBatch(COMPLETIONS, file_id, owner=other, dry_run=True))
        client.batches.stop(batch.id, Ending.CANCELLED)
    assert one_line(client, honest) < LIMIT_S


def test_long_files_hold_nobody_up(
    client: Client, settings: Settings, workers: Workers, owners: tuple[str, str]
) -> None:
    """One of them takes some seconds to be read, and all of them a minute."""
    honest, other = owners
    workers.model(settings)
    workers.io(settings)
    one_line(client, honest)
    content = b"".join(b'{"custom_id":"%d","method":"POST","url":"","body":{}}\n' % n for n in range(LINES))
    file_id = client.upload_bytes(content)
    batches = [
        client.batches.create(NewBatch(COMPLETIONS, file_id, owner=other, dry_run=True)) for _ in range(20)
    ]
    assert one_line(client, honest) < LIMIT_S
    assert any(not client.get(batch).validated for batch in batches), "there is nothing to wait for"
    began = time.monotonic()
    stopping = [threading.Thread(target=client.batches.stop, args=(b.id, Ending.CANCELLED)) for b in batches]
    for thread in stopping:
        thread.start()
    for thread in stopping:
        thread.join()
    for batch in batches:
        client.end(batch)
    assert time.monotonic() - began < LIMIT_S, "what is cancelled is not read to its end"
