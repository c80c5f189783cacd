"""Leaders that are slow or overtaken, files that are broken or missing, and what an ended batch leaves."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tasks.base.errors import BatchNotFound, LeadLost
from tasks.base.settings import Settings
from tasks.batches import leader as batch_driver
from tasks.batches.cooldown import Cooldown
from tasks.batches.ingest import Ingest
from tasks.batches.leader import BatchLeader
from tasks.batches.segments import chunk_name, segment_name
from tasks.batches.store import BatchStore
from tasks.broker.publisher import Publisher
from tasks.files.base import NewObject
from tasks.files.local import LocalStore
from tasks.files.manager import FileManager
from tasks.files.records import FileRecords, Purpose, object_name
from tasks.records.batch import Batch, BatchStatus, Ending, NewBatch, line_job_id
from tasks.records.job import NewJob, Priority, Status
from tasks.schema.openai_requests import COMPLETIONS
from tasks.store.jobs import JobStore
from tasks.store.workers import Registry, WorkerInfo
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import wait_until
from tests.tasks.helpers.records import claimed

RESULT = {
    "text": "yes",
    "finish_reason": "stop",
    "logprobs": None,
    "usage": {
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "total_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 0},
    },
}
ERROR = {"code": "boom", "message": "boom", "param": None}


class Folder(LocalStore):
    """Notes what is read, does something else just before it writes the next results of jobs, and lists
    what a batch left only once it may.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.may_list = threading.Event()
        self.may_list.set()
        self.opened: list[str] = []
        self.meanwhile: Callable[[], object] | None = None

    def open_new(self, name: str) -> NewObject:
        if "/parts/0" in name and self.meanwhile is not None:
            work, self.meanwhile = self.meanwhile, None
            work()
        return super().open_new(name)

    def open(self, name: str) -> Any:
        self.opened.append(name)
        return super().open(name)

    def list(self, prefix: str) -> list[str]:
        self.may_list.wait(60)
        return super().list(prefix)


class IoWorker:
    """One that may lead, round by round."""

    def __init__(self, settings: Settings, store: JobStore, publisher: Publisher) -> None:
        self.files = Folder(Path(settings.files))
        self.keeper = FileManager(self.files, FileRecords(store.db))
        self.driver = BatchLeader(settings, store, publisher, self.keeper)

    def until(self, holds: Callable[[], bool]) -> None:
        def after_a_round() -> bool:
            self.driver.run_round()
            return holds()

        wait_until(after_a_round, 20)


class System:
    """Several of them over one store, and what clients and model workers do."""

    def __init__(self, settings: Settings, store: JobStore, publisher: Publisher) -> None:
        self.settings, self.store, self.publisher = settings, store, publisher
        self.batches = BatchStore(store.db)
        self.io_workers: list[IoWorker] = []

    def io(self) -> IoWorker:
        self.io_workers.append(IoWorker(self.settings, self.store, self.publisher))
        return self.io_workers[-1]

    def create(self, lines: int, **fields: Any) -> Batch:
        keeper = FileManager(LocalStore(Path(self.settings.files)), FileRecords(self.store.db))
        with keeper.begin() as out:
            for n in range(lines):
                body = {"prompt": f"line {n}"}
                out.write(
                    json.dumps(
                        {"custom_id": f"id-{n}", "method": "POST", "url": COMPLETIONS, "body": body}
                    ).encode()
                    + b"\n"
                )
            file_id = out.finish("x.jsonl", Purpose.BATCH).id
        return self.batches.create(NewBatch(COMPLETIONS, file_id, **fields))

    def sent(self, lines: int, io: IoWorker, **fields: Any) -> Batch:
        """A batch whose lines are all sent by this io worker."""
        batch = self.create(lines, **fields)
        io.until(lambda: len(self.batches.live_jobs(batch.id)) == lines)
        return batch

    def answer(self, batch: Batch, line: int, status: Status = Status.SUCCEEDED) -> None:
        job_id = line_job_id(batch.id, line)
        error = ERROR if status is Status.FAILED else None
        assert self.store.finish(job_id, claimed(self.store, job_id).fencing_token, status, RESULT, error)

    def falls_silent(self) -> None:
        """Whoever leads."""
        self.store.db.redis.delete(f"{self.store.db.prefix}leader")

    def is_ended(self, batch: Batch) -> bool:
        return self.batches.get(batch.id).ended

    def entries(self, file_id: str | None) -> list[str]:
        assert file_id is not None
        text = Path(self.settings.files, object_name(file_id)).read_text()
        return [json.loads(entry)["custom_id"] for entry in text.splitlines()]

    def objects(self, batch: Batch) -> list[str]:
        return LocalStore(Path(self.settings.files)).list(f"batches/{batch.id}")


@pytest.fixture
def settings(redis_server: RedisServer, tmp_path: Path) -> Settings:
    return fast_settings(redis_server, files=str(tmp_path / "files"))


@pytest.fixture(autouse=True)
def short_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_driver, "RETRY_S", 0.1)


@pytest.fixture
def system(settings: Settings, store: JobStore, publisher: Publisher) -> Iterator[System]:
    system = System(settings, store, publisher)
    yield system
    for io in system.io_workers:
        io.driver.stop()


@pytest.fixture
def io(system: System) -> IoWorker:
    return system.io()


def test_a_part_written_late_replaces_none_that_counts(system: System, io: IoWorker) -> None:
    batch = system.sent(2, io)
    other = system.io()

    def overtaken() -> None:
        system.answer(batch, 2)
        system.falls_silent()
        other.until(lambda: bool(system.batches.get(batch.id).segments))

    io.files.meanwhile = overtaken
    system.answer(batch, 1)
    with pytest.raises(LeadLost):
        io.until(lambda: False)
    other.until(lambda: system.is_ended(batch))
    assert system.entries(system.batches.get(batch.id).output_file_id) == ["id-0", "id-1"]
    other.until(lambda: system.objects(batch) == [])


def test_being_slow_costs_the_lead_only_to_another(system: System, io: IoWorker) -> None:
    batch = system.sent(1, io)
    io.files.meanwhile = system.falls_silent
    system.answer(batch, 1)
    io.until(lambda: len(system.batches.get(batch.id).segments) == 1)
    io.until(lambda: system.is_ended(batch))


@pytest.mark.slow
def test_the_lead_is_renewed_while_a_round_takes_long(system: System, io: IoWorker) -> None:
    go_on = threading.Event()
    held_up = threading.Event()

    def wait() -> None:
        held_up.set()
        go_on.wait(60)

    io.files.meanwhile = wait
    batch = system.create(1)
    io.driver.start()
    wait_until(lambda: system.batches.get(batch.id).validated)
    wait_until(lambda: len(system.batches.live_jobs(batch.id)) == 1)
    system.answer(batch, 1)
    assert held_up.wait(10)
    key = f"{system.store.db.prefix}leader"
    wait_until(lambda: system.store.db.redis.pttl(key) < 4500)
    wait_until(lambda: system.store.db.redis.pttl(key) > 4500)
    go_on.set()
    wait_until(lambda: system.is_ended(batch))


@pytest.mark.slow
def test_one_that_hangs_does_not_keep_the_lead(
    system: System, io: IoWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    batch = system.sent(1, io)
    monkeypatch.setattr(batch_driver, "LONGEST_ROUND_S", 0.5)
    io.files.meanwhile = lambda: go_on.wait(60)
    system.answer(batch, 1)
    io.driver.start()
    try:
        other = system.io()
        other.until(lambda: system.is_ended(batch))
    finally:
        go_on.set()
    assert system.entries(system.batches.get(batch.id).output_file_id) == ["id-0"]


def test_one_whose_rounds_fail_does_not_keep_the_lead(system: System, io: IoWorker) -> None:
    """Over the record of a worker that cannot be understood, until it is mended."""
    redis, prefix = system.store.db.redis, system.store.db.prefix
    io.driver.start()
    wait_until(system.batches.has_leader)
    redis.set(f"{prefix}worker:broken", "{")
    redis.sadd(f"{prefix}workers", "broken")
    wait_until(lambda: not redis.exists(f"{prefix}led_by", f"{prefix}leader", f"{prefix}bulk_room"))
    redis.delete(f"{prefix}worker:broken")
    wait_until(system.batches.has_leader)


def test_what_only_newer_workers_tell_is_ignored(system: System) -> None:
    registry = Registry(system.store.db, 60)
    registry.refresh(WorkerInfo("new", "model", 512, slots=4, pid=1, host="here", started_at=0.0))
    key = f"{system.store.db.prefix}worker:new"
    system.store.db.redis.set(key, json.dumps({**json.loads(system.store.db.redis.get(key)), "later": 1}))
    assert [(info.id, info.slots) for info in registry.live()] == [("new", 4)]


def test_one_that_resigned_leads_no_more(system: System) -> None:
    batches = system.batches
    assert batches.lead("me", {"": 64}) is not None
    batches.resign("me")
    with pytest.raises(LeadLost):
        batches.renew("me")
    assert batches.lead("other", {"": 64}) is not None


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
    io.until(lambda: len(system.batches.live_jobs(batch.id)) == 2)
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
    assert not system.store.create(NewJob({"prompt": "p"}, priority=Priority.BULK, owner="single"))[1]


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


def ended_batches(system: System) -> list[Batch]:
    """Two with a result each to collect, by an io worker that ended since."""
    first = system.io()
    batches = [system.sent(1, first) for _ in range(2)]
    first.driver.stop()
    for batch in batches:
        system.answer(batch, 1)
    return batches


def collected(system: System, batches: list[Batch]) -> int:
    return sum(bool(system.batches.get(batch.id).segments) for batch in batches)


def test_a_slow_file_store_ends_a_round_early(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_driver, "FILES_S", 0)
    batches = ended_batches(system)
    io = system.io()
    for done in (1, 2):
        assert io.driver.run_round()
        assert collected(system, batches) == done, "the next goes on with the other batch"
    system.sent(1, io)


def test_of_a_slow_file_store_one_chunk_is_read_in_a_round(
    system: System, io: IoWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_driver, "FILES_S", 0)
    batches = [system.create(1) for _ in range(2)]
    assert system.batches.lead("reader", {"": 64}) is not None
    for batch in batches:
        deque(Ingest(io.files, system.batches, system.settings, "reader").run(batch.id), maxlen=0)
    system.batches.resign("reader")
    for done in (1, 2):
        assert io.driver.run_round()
        assert sum(len(system.batches.live_jobs(batch.id)) for batch in batches) == done


def test_stopping_does_not_wait_for_all_batches(system: System) -> None:
    batches = ended_batches(system)
    io = system.io()
    stopping = threading.Thread(target=io.driver.stop)

    def stop() -> None:
        stopping.start()
        assert io.driver._stopping.wait(10)

    io.files.meanwhile = stop
    io.driver.start()
    wait_until(lambda: stopping.ident is not None)
    stopping.join()
    assert collected(system, batches) == 1


def test_a_job_whose_record_is_gone_holds_up_nothing(system: System, io: IoWorker) -> None:
    batch = system.sent(2, io)
    for line in (1, 2):
        system.answer(batch, line)
    system.store.db.redis.delete(f"{system.store.db.prefix}job:{line_job_id(batch.id, 1)}")
    io.until(lambda: system.is_ended(batch))
    assert system.entries(system.batches.get(batch.id).output_file_id) == ["id-1"]


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
    other = system.io()
    system.falls_silent()
    other.until(lambda: system.objects(batch) == [])
    with other.files.open_new(segment_name(batch.id, "late")) as late:
        late.write(b"by one who was slow")
    assert system.batches.delete(batch.id)
    other.until(lambda: system.objects(batch) == [])
    with pytest.raises(BatchNotFound):
        system.batches.get(batch.id)


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


def test_cleaning_up_leaves_room_for_reading(system: System, io: IoWorker) -> None:
    key = f"{system.store.db.prefix}batches:cleanup"
    system.store.db.redis.sadd(key, *(f"batch_old{n}" for n in range(20)))
    io.files.may_list.clear()
    try:
        io.driver.run_round()
        system.sent(1, io)
    finally:
        io.files.may_list.set()
    io.until(lambda: not system.store.db.redis.exists(key))


def test_a_retry_of_what_was_deleted_meanwhile_is_refused(system: System, io: IoWorker) -> None:
    batch = system.sent(1, io)
    system.answer(batch, 1, Status.FAILED)
    io.until(lambda: system.is_ended(batch))
    again = system.batches.create(NewBatch(COMPLETIONS, batch.input_file_id, retry_of=batch.id))
    assert system.batches.delete(batch.id)
    io.until(lambda: system.is_ended(again))
    assert system.batches.get(again.id).errors[0]["code"] == "batch_not_found"
