"""Files that are broken, missing or cannot be written, and what an ended batch leaves."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tasks.base.errors import BatchNotFound, FileStoreUnavailable, LeadLost
from tasks.batches.cooldown import Cooldown
from tasks.batches.ingest import Ingest
from tasks.batches.segments import UNSENT, chunk_name, segment_name, write_segment
from tasks.records.batch import BatchStatus, Ending, NewBatch
from tasks.records.job import NewJob, Priority, Status
from tasks.schema.openai_requests import COMPLETIONS
from tests.tasks.helpers.io_workers import IoWorker, System
from tests.tasks.helpers.records import is_sent


def test_an_error_while_finalizing_loses_no_result(
    system: System, io: IoWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """A part that cannot be understood, until it is mended."""
    batch = system.sent(2, io)
    system.answer(batch, 1)
    io.until(lambda: len(system.batches.get(batch.id).segments) == 1)
    [name] = system.batches.get(batch.id).segments
    part = Path(system.settings.files, segment_name(batch.id, name))
    good = part.read_bytes()
    part.write_bytes(b"{")
    system.answer(batch, 2)
    io.until(lambda: f"finalizing of {batch.id} waits" in caplog.text)
    assert not system.is_ended(batch)
    part.write_bytes(good)
    io.until(lambda: system.is_ended(batch))
    done = system.batches.get(batch.id)
    assert (done.status, system.entries(done.output_file_id)) == (BatchStatus.COMPLETED, ["id-0", "id-1"])


def test_without_room_for_temporary_files_batches_wait(
    system: System,
    io: IoWorker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A file stands where their folder should be."""
    folder = tmp_path / "tmp"
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    folder.write_text("in the way")
    batch = system.create(2)
    io.until(lambda: f"reading of {batch.id} waits: temporary files" in caplog.text)
    folder.unlink()
    folder.mkdir()
    io.until(lambda: system.lines_live(batch) == 2)
    folder.rmdir()
    folder.write_text("in the way")
    for line in (1, 2):
        system.answer(batch, line)
    io.until(lambda: f"finalizing of {batch.id} waits: temporary files" in caplog.text)
    assert not system.is_ended(batch)
    folder.unlink()
    folder.mkdir()
    io.until(lambda: system.is_ended(batch))
    assert system.entries(system.batches.get(batch.id).output_file_id) == ["id-0", "id-1"]


def hold_a_job(system: System) -> None:
    """A bulk job that waits for its turn."""
    system.store.db.redis.set(f"{system.store.db.prefix}bulk_room", '{"": 0}')
    job = system.store.create(NewJob({"prompt": "p"}, priority=Priority.BULK, owner="single"))
    assert not is_sent(system.store, job)


def is_held(system: System) -> bool:
    return bool(system.store.db.redis.hexists(f"{system.store.db.prefix}held", "single"))


def test_a_missing_chunk_stops_no_other_work(system: System, io: IoWorker) -> None:
    batch = system.create(3)
    assert system.batches.lead("reader", {"": 64}) is not None
    deque(Ingest(io.files, system.batches, system.settings, "reader").run(batch.id), maxlen=0)
    system.batches.resign("reader")
    io.files.delete(chunk_name(batch.id, 0))
    hold_a_job(system)
    system.sent(2, io, owner="other")
    assert not is_held(system)
    assert not system.is_ended(batch), "what is missing may come back"
    system.batches.stop(batch.id, Ending.CANCELLED)
    io.until(lambda: system.is_ended(batch))
    failed = system.batches.get(batch.id)
    assert (failed.status, failed.errors[0]["code"]) == (BatchStatus.FAILED, "object_missing")


def test_held_jobs_need_no_file_store(system: System, io: IoWorker, tmp_path: Path) -> None:
    batch = system.sent(1, io)
    hold_a_job(system)
    folder, aside = tmp_path / "files", tmp_path / "aside"
    folder.rename(aside)
    folder.write_text("in the way")
    system.answer(batch, 1)
    io.until(lambda: not is_held(system))
    folder.unlink()
    aside.rename(folder)
    io.until(lambda: system.is_ended(batch))
    assert system.entries(system.batches.get(batch.id).output_file_id) == ["id-0"]


def test_held_jobs_do_not_wait_for_the_file_store(system: System, io: IoWorker) -> None:
    batch = system.sent(1, io)
    system.answer(batch, 1)
    hold_a_job(system)
    seen: list[bool] = []
    io.files.meanwhile = lambda: seen.append(is_held(system))
    io.until(lambda: bool(seen))
    assert seen == [False]


def test_parts_are_read_once_for_both_files(system: System, io: IoWorker) -> None:
    batch = system.sent(3, io)
    system.answer(batch, 1)
    system.answer(batch, 2, Status.FAILED)
    io.until(lambda: bool(system.batches.get(batch.id).segments))
    system.answer(batch, 3)
    io.until(lambda: system.is_ended(batch))
    done = system.batches.get(batch.id)
    assert system.entries(done.output_file_id) == ["id-0", "id-2"]
    assert system.entries(done.error_file_id) == ["id-1"]
    read = [name for name in io.files.opened if "/parts/" in name]
    assert sorted(read) == sorted(set(read)) != []


def test_what_an_ended_batch_left_in_the_store_is_removed(system: System, io: IoWorker) -> None:
    """By another, when the one that wrote its end is killed before it has cleaned up."""
    batch = system.sent(1, io)
    system.answer(batch, 1)
    io.until(lambda: system.is_ended(batch))
    system.ended_long_ago(batch)
    other = system.io()
    system.falls_silent()
    other.until(lambda: system.objects(batch) == [])
    with other.files.open_new(segment_name(batch.id, "late")) as late:
        late.write(b"by one who was slow")
    assert system.batches.delete(batch.id)
    other.until(lambda: system.objects(batch) == [])
    with pytest.raises(BatchNotFound):
        system.batches.get(batch.id)


@pytest.mark.parametrize("is_away", [False, True])
def test_what_is_written_during_a_cleanup_is_removed(
    system: System, io: IoWorker, monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    """By one who was slow, for a batch that is dropped, when all else has been removed.

    is_away: the file store, when that is to be found out.
    """
    batch = system.sent(1, io)
    system.answer(batch, 1)
    cleaned = io.driver._batches.cleaned
    late = []

    def away(_: str) -> list[str]:
        monkeypatch.undo()
        raise FileStoreUnavailable("away")

    def cleaned_too_late(batch_id: str) -> None:
        if not late:
            late.append(segment_name(batch_id, "late"))
            with io.files.open_new(late[0]) as written:
                written.write(b"by one who was slow")
            assert system.batches.delete(batch_id)
            if is_away:
                monkeypatch.setattr(io.files, "list", away)
        cleaned(batch_id)

    monkeypatch.setattr(io.driver._batches, "cleaned", cleaned_too_late)
    io.until(lambda: system.is_ended(batch))
    system.ended_long_ago(batch)
    io.until(lambda: bool(late) and system.objects(batch) == [])


def test_an_end_that_redis_forgets_is_written_again(
    system: System, io: IoWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though other rounds have followed it."""
    batch = system.sent(2, io)
    finish = io.driver._batches.finish
    saved: dict[bytes, bytes] = {}

    def finish_once_saved(*arguments: str, **fields: str) -> None:
        saved.update(saved or system.saved())
        finish(*arguments, **fields)

    monkeypatch.setattr(io.driver._batches, "finish", finish_once_saved)
    system.answer(batch, 1)
    system.answer(batch, 2)
    io.until(lambda: system.is_ended(batch))
    for _ in range(20):
        io.driver.run_round()
        time.sleep(0.01)  # for what the round has begun
    system.forgets(saved)
    assert not system.is_ended(batch)
    io.until(lambda: system.is_ended(batch))
    done = system.batches.get(batch.id)
    assert (done.status, system.entries(done.output_file_id)) == (BatchStatus.COMPLETED, ["id-0", "id-1"])


def test_lines_that_were_never_sent_count_once_when_redis_forgot_that_they_ended(
    system: System, io: IoWorker
) -> None:
    """As those of a batch that was being cancelled, and has been sent whole since."""
    batch = system.sent(1, io)
    write_segment(io.files, batch.id, UNSENT, ['[1,true,{"custom_id":"id-0"}]\n'])
    system.answer(batch, 1)
    io.until(lambda: system.is_ended(batch))
    done = system.batches.get(batch.id)
    assert (system.entries(done.output_file_id), done.error_file_id) == (["id-0"], None)


def test_a_batch_is_cancelled_again_when_redis_forgot_it(system: System, io: IoWorker) -> None:
    """By the same io worker."""
    batch = system.sent(2, io)
    saved = system.saved()
    system.batches.stop(batch.id, Ending.CANCELLED)
    io.until(lambda: system.lines_live(batch) == 0)
    system.forgets(saved)
    io.driver.run_round()
    assert system.lines_live(batch) == 2
    system.batches.stop(batch.id, Ending.CANCELLED)
    io.until(lambda: system.is_ended(batch))


def test_what_fails_on_any_thread_rests() -> None:
    """While others begin to rest at the same time."""
    patience = Cooldown(60)
    start = threading.Barrier(4)

    def fail() -> None:
        raise LeadLost

    def many(thread: int) -> None:
        start.wait(10)
        for n in range(500):
            with pytest.raises(LeadLost):
                patience.attempt(f"{thread} {n}", fail)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(many, range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert all(patience.is_active(f"{thread} {n}") for thread in range(4) for n in range(500))


def test_a_retry_of_what_was_deleted_meanwhile_is_refused(system: System, io: IoWorker) -> None:
    batch = system.sent(1, io)
    system.answer(batch, 1, Status.FAILED)
    io.until(lambda: system.is_ended(batch))
    again = system.batches.create(NewBatch(COMPLETIONS, batch.input_file_id, retry_of=batch.id))
    assert system.batches.delete(batch.id)
    io.until(lambda: system.is_ended(again))
    assert system.batches.get(again.id).errors[0]["code"] == "batch_not_found"
