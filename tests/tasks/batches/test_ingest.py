"""Reading a batch's file: how much of it is read, how long a step takes, and what stays in memory."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from tasks.base.settings import Settings
from tasks.batches import ingest as ingest_module
from tasks.batches.finalizer import Finalizer
from tasks.batches.ingest import CHUNK_BYTES, MESSAGE_CHARS, Ingest
from tasks.records.batch import Batch, BatchStatus, Ending, NewBatch
from tasks.schema.openai_requests import COMPLETIONS, MAX_CUSTOM_ID
from tests.tasks.helpers.client import Client, ids, line

TOKEN = "me"
BYTES_A_LINE = 400  # of memory, at most, whatever the line holds
MB = 2**20


@pytest.fixture(autouse=True)
def always_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every line whether the batch goes on."""
    monkeypatch.setattr(ingest_module, "REPORT_S", 0.0)


class Reader:
    """One that leads, and reads batches step by step."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self.client = client
        assert client.batches.lead(TOKEN, {"": 64}) is not None
        self.ingest = Ingest(client.files, client.batches, settings, TOKEN)

    def batch(self, content: bytes, **fields: Any) -> Batch:
        return self.client.batches.create(NewBatch(COMPLETIONS, self.client.upload_bytes(content), **fields))

    def finish(self, batch: Batch) -> Batch:
        deque(self.ingest.run(batch.id), maxlen=0)
        finaliser = Finalizer(self.client.keeper, self.client.batches, TOKEN)
        deque(finaliser.run(batch.id), maxlen=0)
        return self.client.get(batch)


@pytest.fixture
def reader(client: Client, settings: Settings) -> Reader:
    return Reader(client, settings)


class Counted(io.BytesIO):
    """Counts the bytes that are read."""

    taken = 0

    def readline(self, size: int | None = -1, /) -> bytes:
        found = super().readline(-1 if size is None else size)
        self.taken += len(found)
        return found


def content(lines: int, **body: Any) -> bytes:
    return b"".join(json.dumps(line(n, **body)).encode() + b"\n" for n in range(lines))


def test_a_file_with_too_many_lines_is_not_read_to_its_end(
    client: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(client, settings.model_copy(update={"max_batch_lines": 100}))
    source = Counted(b"{}\n" + b"\n" * 1_000_000)
    batch = reader.batch(b"x")
    monkeypatch.setattr(type(reader.client.files), "open", lambda *_: source)
    with pytest.raises(ingest_module.BatchRefused, match="blank ones counted too"):
        deque(reader.ingest.run(batch.id), maxlen=0)
    assert source.taken < 110


@pytest.mark.parametrize("how", [Ending.CANCELLED, Ending.EXPIRED])
@pytest.mark.parametrize("dry_run", [False, True])
def test_nothing_is_read_of_a_batch_that_has_been_ended(reader: Reader, how: Ending, dry_run: bool) -> None:
    batch = reader.batch(content(100), dry_run=dry_run)
    reader.client.batches.stop(batch.id, how)
    assert sum(1 for _ in reader.ingest.run(batch.id)) == 1
    done = reader.finish(batch)
    assert (done.total, done.completed, done.failed) == (0, 0, 0)
    assert (done.output_file_id, done.error_file_id) == (None, None)
    assert [error["code"] for error in done.errors] == [f"batch_{how}"]
    assert done.status.value == how.value


@pytest.mark.parametrize("steps", [50, 150, 300, 402])
def test_reading_ends_with_its_batch(reader: Reader, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its lines are counted, while they are checked, and while they are written down."""
    monkeypatch.setattr(ingest_module, "CHUNK_LINES", 50)
    bad = b"".join(b"{\n" for _ in range(20))
    batch = reader.batch(bad + content(180))
    run = reader.ingest.run(batch.id)
    for _ in range(steps):
        next(run)
    reader.client.batches.stop(batch.id, Ending.CANCELLED)
    assert sum(1 for _ in run) <= 2
    done = reader.finish(batch)
    assert done.status is BatchStatus.CANCELLED
    entries = reader.client.read(done.error_file_id)
    read = steps > 200
    assert (done.total, done.completed, done.failed) == (len(entries), 0, 20 * read)
    assert [entry["error"]["code"] for entry in entries[:20]] == ["invalid_json_line"] * 20 * read
    assert {entry["error"]["code"] for entry in entries[20:]} == ({"batch_cancelled"} if read else set())
    assert done.errors[0]["code"] == "batch_cancelled"


def test_the_line_that_was_sent_is_answered_though_another_reads_the_file_then(reader: Reader) -> None:
    """And the batch is cancelled before that one has read it."""
    batch = reader.batch(b"{\n" * 5 + content(50))
    first = reader.ingest.run(batch.id)
    while reader.client.get(batch).chunks == 0:
        next(first)
    first.close()
    reader.client.batches.stop(batch.id, Ending.CANCELLED)
    done = reader.finish(batch)
    assert (done.total, done.failed) == (6, 5)
    assert ids(reader.client.read(done.error_file_id)) == [None] * 5 + ["id-0"]


def test_what_is_left_in_the_middle_leaves_no_file_open(reader: Reader) -> None:
    batch = reader.batch(content(50) + b"{\n" * 50)
    run = reader.ingest.run(batch.id)
    for _ in range(190):
        next(run)
    run.close()
    assert not reader.client.files.list(f"batches/{batch.id}/parts")
    deque(reader.ingest.run(batch.id), maxlen=0)
    done = reader.client.get(batch)
    assert (done.total, done.failed) == (100, 50)


def long_id(number: int) -> str:
    return f"{number:x<{MAX_CUSTOM_ID}}"


def of_long_ids(lines: int) -> Iterator[bytes]:
    for number in range(lines):
        value = {**line(number, "y" * 600), "custom_id": long_id(number)}
        yield json.dumps(value).encode()


def of_long_mistakes(lines: int) -> Iterator[bytes]:
    for number in range(lines):
        yield json.dumps(line(number, **{f"{number:z<2000}": 1})).encode()


def of_blanks(lines: int) -> Iterator[bytes]:
    yield b"{"
    for _ in range(lines - 1):
        yield b""


@pytest.mark.parametrize("made", [of_long_ids, of_long_mistakes, of_blanks])
@pytest.mark.slow
def test_what_a_line_leaves_in_memory_does_not_depend_on_what_it_holds(
    client: Client, settings: Settings, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_module, "REPORT_S", 0.5)
    reader, lines = Reader(client, settings), 8000
    batch = reader.batch(b"\n".join(made(lines)))
    run = reader.ingest.run(batch.id)
    tracemalloc.start()
    try:
        deque(run, maxlen=0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < lines * BYTES_A_LINE + 2 * CHUNK_BYTES, f"{peak / MB:.1f} MB"


def test_what_is_said_of_a_line_is_short(reader: Reader) -> None:
    name = "z" * 100_000
    done = reader.finish(reader.batch(content(1, **{name: 1})))
    [entry] = reader.client.read(done.error_file_id)
    for error in (entry["error"], done.errors[0]):
        assert error["message"].startswith("body.zzz")
        assert max(len(error["message"]), len(error["param"])) <= MESSAGE_CHARS + 3


def test_a_retry_reads_only_what_failed(reader: Reader) -> None:
    first = reader.finish(reader.batch(b"{\n" + content(3, max_tokens=-1) + b"{}\n"))
    assert first.failed == 5
    again = reader.batch(content(10), retry_of=first.id, dry_run=True)
    assert reader.finish(again).total == 3
