"""Batches made of tables, beside those of other keys and through the death of the io worker."""

from __future__ import annotations

import gzip
import json
import os
import signal
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tables.conversion.options import TableOptions
from tables.conversion.process import Conversion
from tables.conversion.seats import AT_ONCE
from tasks.base.errors import BatchRefused, FileStoreUnavailable
from tasks.base.settings import Settings
from tasks.batches.ingest import Ingest
from tasks.records.api_key import Limits
from tasks.records.batch import Batch, BatchStatus, Ending, NewBatch
from tasks.records.endpoints import CHAT
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tests.support.workers import Workers, wait_until
from tests.tasks.helpers.client import Client, ids, line

TOKEN = "me"
ROWS = 20
BLANKS = 10_000_000  # lines without a row: seconds of reading


def slow_table() -> bytes:
    rows = b"".join(b"%d\n" % number for number in range(ROWS))
    return gzip.compress(b"a\n" + b"\n" * BLANKS + rows, 1)


def create(client: Client, content: bytes, name: str = "t.csv", **fields: Any) -> Batch:
    options = {"template": "{{ a }}", **fields.pop("options", {})}
    table = TableOptions(name, **options)
    return client.batches.create(NewBatch(CHAT, client.upload_bytes(content), table=table, **fields))


def key(store: JobStore, name: str, **limits: Any) -> str:
    return KeyStore(store.db).create(name, Limits(**limits))[0].id


def conversions() -> list[int]:
    """Processes that convert for anybody on this machine."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"tables.conversion.child" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:  # it has ended
            continue
    return found


def children(parent: int) -> list[int]:
    def parent_of(number: int) -> int:
        try:
            return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return 0

    return [number for number in conversions() if parent_of(number) == parent]


@pytest.mark.stack
def test_an_io_worker_that_is_killed_while_it_reads_a_table_loses_nothing(
    client: Client, settings: Settings, workers: Workers
) -> None:
    workers.model(settings)
    worker = workers.io(settings)
    batch = create(client, slow_table(), "t.csv.gz")
    wait_until(lambda: bool(children(worker.process.pid)))
    [child] = children(worker.process.pid)
    worker.kill()
    wait_until(lambda: child not in conversions())
    assert not client.get(batch).validated
    workers.io(settings)
    done = client.end(batch, 180)  # the whole table is read again
    assert (done.status, done.completed, done.failed) == (BatchStatus.COMPLETED, ROWS, 0)
    assert ids(client.read(done.output_file_id)) == [str(number) for number in range(1, ROWS + 1)]


@pytest.mark.stack
def test_an_io_worker_that_is_killed_after_it_has_sent_rows_repeats_none(
    client: Client, settings: Settings, workers: Workers
) -> None:
    workers.model(settings)
    worker = workers.io(settings)
    rows = 10_000
    batch = create(client, b"a\n" + b"".join(b"%d %s\n" % (n, b"word " * 60) for n in range(rows)))
    wait_until(lambda: client.get(batch).total >= 1000)
    assert not client.get(batch).validated
    worker.kill()
    workers.io(settings)
    wait_until(lambda: client.get(batch).validated, 60)
    client.batches.stop(batch.id, Ending.CANCELLED)
    done = client.end(batch)
    good, bad = ids(client.read(done.output_file_id)), ids(client.read(done.error_file_id))
    assert sorted([*good, *bad], key=int) == [str(number) for number in range(1, rows + 1)]


@pytest.mark.stack
def test_large_tables_hold_nobody_up(
    client: Client, settings: Settings, workers: Workers, store: JobStore
) -> None:
    """Those of more keys than may convert at a time; not even another key's table if one may."""
    workers.model(settings)
    worker = workers.io(settings)
    honest = key(store, "honest")
    client.end(client.create([line(0)], owner=honest))
    content = slow_table()
    others = [key(store, f"other{number}") for number in range(AT_ONCE - 1)]
    large = [create(client, content, "t.csv.gz", owner=owner) for owner in others for _ in range(3)]
    wait_until(lambda: len(children(worker.process.pid)) >= AT_ONCE - 1)
    with ExitStack() as stopped:
        for child in children(worker.process.pid):
            os.kill(child, signal.SIGSTOP)
            stopped.callback(os.kill, child, signal.SIGCONT)
        for create_small in (
            lambda: client.create([line(0)], owner=honest),
            lambda: create(client, b"a\nx\n", owner=honest),
        ):
            assert client.end(create_small()).status is BatchStatus.COMPLETED
        last = create(client, content, "t.csv.gz", owner=key(store, "last"))
        assert client.end(client.create([line(0)], owner=honest)).status is BatchStatus.COMPLETED
        assert not any(client.get(batch).validated for batch in large), "there was something to wait for"
    for batch in (*large, last):
        client.batches.stop(batch.id, Ending.CANCELLED)
    for batch in (*large, last):
        assert client.end(batch).status is BatchStatus.CANCELLED


class Reader:
    """One that leads, and reads tables step by step."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self.client = client
        assert client.batches.lead(TOKEN, {"": 64}) is not None
        self.ingest = Ingest(client.files, client.batches, settings, TOKEN)

    def read(self, batch: Batch) -> Batch:
        deque(self.ingest.run(batch.id), maxlen=0)
        return self.client.get(batch)


@pytest.mark.parametrize(
    ("changes", "content", "code"),
    [
        ({"max_batch_lines": 5}, b"a\n" + b"x\n" * 6, "too_many_tasks"),
        ({"max_file_bytes": 1000}, b"a\n" + b"x\n" * 20, "table_too_large"),
        ({}, b"a,b\nx\n", "invalid_table"),
    ],
)
@pytest.mark.slow
def test_a_table_that_is_refused_sends_nothing(
    client: Client, settings: Settings, changes: dict[str, Any], content: bytes, code: str
) -> None:
    reader = Reader(client, settings.model_copy(update=changes))
    batch = create(client, content)
    with pytest.raises(BatchRefused) as refused:
        reader.read(batch)
    assert refused.value.code == code
    assert client.get(batch).chunks == 0
    assert children(os.getpid()) == []


@pytest.mark.slow
def test_a_row_that_is_too_long_is_refused_alone(client: Client, settings: Settings) -> None:
    reader = Reader(client, settings.model_copy(update={"max_body_bytes": 500}))
    done = reader.read(create(client, b"a\nx\n" + b"y" * 600 + b"\nz\n"))
    assert (done.total, done.failed) == (3, 1)
    assert [(error["line"], error["code"]) for error in done.errors] == [(2, "line_too_long")]


@pytest.mark.slow
def test_a_table_is_read_no_further_than_its_batch_runs(client: Client, settings: Settings) -> None:
    reader = Reader(client, settings)
    batch = create(client, slow_table(), "t.csv.gz")
    run = reader.ingest.run(batch.id)
    next(run)
    assert len(children(os.getpid())) == 1
    client.batches.stop(batch.id, Ending.CANCELLED)
    deque(run, maxlen=0)
    assert children(os.getpid()) == []
    done = client.get(batch)
    assert (done.total, done.validated) == (0, True)
    assert [error["code"] for error in done.errors] == ["batch_cancelled"]
    run = reader.ingest.run(create(client, slow_table(), "t.csv.gz").id)
    next(run)
    run.close()
    assert children(os.getpid()) == []
    assert reader.read(create(client, b"a\nx\n")).total == 1, "its seat is free again"


@pytest.mark.slow
def test_whoever_waits_for_a_seat_can_be_cancelled(client: Client, settings: Settings) -> None:
    reader = Reader(client, settings)
    batches = [create(client, slow_table(), "t.csv.gz", owner="one") for _ in range(2)]
    runs = [reader.ingest.run(batch.id) for batch in batches]
    for run in runs:
        next(run)
    assert len(children(os.getpid())) == 1
    client.batches.stop(batches[1].id, Ending.CANCELLED)
    deque(runs[1], maxlen=0)
    assert client.get(batches[1]).validated
    runs[0].close()


@pytest.mark.slow
def test_the_copy_of_its_requests_counts_as_files(
    client: Client, settings: Settings, store: JobStore
) -> None:
    reader = Reader(client, settings)
    content = b"a\n" + b"x\n" * 10
    owner = key(store, "a", max_files_bytes=100_000)

    def counted() -> int:
        return int(store.db.redis.hget(f"{store.db.prefix}file_bytes", owner) or 0)

    batch = create(client, content, owner=owner, dry_run=True)
    assert counted() == len(content)
    reader.read(batch)
    assert counted() > 10 * 100
    client.batches.finish(TOKEN, batch.id, "completed")
    assert counted() == 0
    small = key(store, "b", max_files_bytes=1000)
    with pytest.raises(BatchRefused, match=r"at most .* files with 1,000 bytes") as refused:
        reader.read(create(client, content, owner=small))
    assert refused.value.code == "file_storage_limit"


@pytest.mark.slow
def test_a_full_disk_is_tried_again(
    client: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(client, settings)
    batch = create(client, b"a\nx\n")
    with monkeypatch.context() as patch, Path("/dev/full").open("r+b", buffering=0) as full:
        patch.setattr(
            "tasks.batches.ingest.Conversion",
            lambda seat, specification, source, **_: Conversion(seat, specification, source, lines=full),
        )
        with pytest.raises(FileStoreUnavailable, match="No space left"):
            reader.read(batch)
    assert reader.read(batch).total == 1


def test_options_are_kept_as_they_came(client: Client) -> None:
    options = {
        "system": "ä\ud800",
        "schema": {"type": "object"},
        "columns": ["a"],
        "id_column": "a",
        "body": {"n": 1},
    }
    made = create(client, b"a\nx\n", options=options)
    assert made.table == TableOptions("t.csv", "{{ a }}", **options)
    assert json.loads(json.dumps(made.to_json()["table"])) == {"template": "{{ a }}", **options}
    assert client.create([line(0)]).table is None
