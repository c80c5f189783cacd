"""Objects and records stay in step, wherever a process is killed and whatever is away."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tasks.base.errors import FileNotFound, FileStoreUnavailable, ObjectMissing, StoreUnavailable
from tasks.base.settings import Settings
from tasks.files import manager as file_keeper
from tasks.files import records as file_records
from tasks.files.factory import make_store
from tasks.files.local import LocalStore
from tasks.files.manager import FileManager
from tasks.files.records import FileRecord, FileRecords, NewFile, Purpose, new_file_id
from tasks.store.jobs import JobStore
from tests.support.files import Kept, get
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import Workers, environment, wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


@pytest.mark.usefixtures("again_soon")
def test_a_file_in_use_that_expired_goes_once_it_is_free(kept: Kept, store: JobStore) -> None:
    file = kept.add(expires_after_s=0)
    store.db.redis.sadd(f"{store.db.prefix}file_uses:{file.id}", "batch_x")
    time.sleep(0.01)
    assert kept.keeper.drop_expired() == 0
    store.db.redis.srem(f"{store.db.prefix}file_uses:{file.id}", "batch_x")
    assert kept.keeper.drop_expired() == 0, "it is looked at again a while later"
    time.sleep(1.05)
    assert kept.keeper.drop_expired() == 1
    assert (kept.objects(), kept.held()) == ([], set())


@pytest.mark.stack
def test_the_io_worker_removes_what_is_due(kept: Kept, settings: Settings, workers: Workers) -> None:
    gone, stays = kept.add(expires_after_s=1), kept.add(expires_after_s=3600)
    io = workers.io(settings)
    wait_until(lambda: kept.objects() == [stays.object_name], report=io.text)
    with pytest.raises(FileNotFound):
        kept.records.get(gone.id)
    assert kept.records.get(stays.id) == stays


def test_an_io_worker_without_the_package_of_its_store_ends_with_one_line(settings: Settings) -> None:
    s3 = settings.model_copy(update={"files": "s3://bucket"})
    code = "import sys; sys.modules['s3fs'] = None; import tasks.io"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(s3), capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == "error: MEDUSAQ_FILES: s3://bucket needs s3fs: pip install 'medusaq[s3]'\n"


CHILD = """
import os, sys
from tasks.files.manager import FileManager
from tasks.files.records import FileRecords, Purpose
from tasks.files.factory import make_store
from tasks.files.local import LocalStore
from tasks.base.settings import get_settings
from tasks.store.jobs import JobStore
settings = get_settings()
keeper = FileManager(make_store(settings.files), FileRecords(JobStore(settings).db))
def die(*_, **__): os.kill(os.getpid(), 9)
point, file_id = sys.argv[1:]
if point == "deleting":
    keeper.objects.delete = die
    keeper.delete(file_id)
if point == "expiring":
    keeper.objects.delete = die
    keeper.drop_expired()
if point == "removed":
    keeper.records.gone = die
    keeper.delete(file_id)
upload = keeper.begin(file_id)
if point == "begun": die()
upload.write(b"x" * 1000000)
if point == "writing": die()
if point == "commit": upload._object.commit = die
if point == "create": keeper.records.create = die
upload.finish("a", Purpose.BATCH)
"""


def killed(point: str, file_id: str, settings: Settings) -> None:
    """Another process, killed with SIGKILL at this point."""
    command = [sys.executable, "-c", CHILD, point, file_id]
    done = subprocess.run(command, cwd=ROOT, env=environment(settings), capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("point", ["begun", "writing", "commit", "create"])
def test_an_upload_killed_at_any_point_leaves_nothing_for_long(
    kept: Kept, settings: Settings, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    killed(point, "file_a", settings)
    assert kept.objects() == (["files/file_a"] if point == "create" else [])
    with pytest.raises(FileNotFound):
        kept.records.get("file_a")
    assert kept.keeper.drop_expired() == 0, "its writer may be alive"
    due = f"{kept.store.db.prefix}file_begun"
    kept.store.db.redis.zadd(due, {"file_a": int(time.time() * 1000) - 1})  # an hour later
    monkeypatch.setattr(file_keeper, "SWEEP_AGE_S", -3600.0)
    monkeypatch.setattr(kept.keeper, "_swept_at", float("-inf"))
    assert kept.keeper.drop_expired() == 1
    assert (kept.objects(), kept.held()) == ([], set())
    assert list(Path(settings.files, ".partial").iterdir()) == []


def test_a_file_outlives_a_killed_second_writer_of_its_name(kept: Kept, settings: Settings) -> None:
    with kept.keeper.begin("file_mine") as upload:
        upload.write(b"output")
        upload.finish("out.jsonl", Purpose.BATCH_OUTPUT)
    for point in ("begun", "writing", "commit"):
        killed(point, "file_mine", settings)
        assert "file_begun" not in kept.held(), "the list of what is removed if nothing is heard of it"
    assert kept.records.renew("file_mine")
    assert get(kept.keeper.objects, "files/file_mine") == b"output"


@pytest.mark.parametrize("point", ["deleting", "removed", "expiring"])
def test_a_removal_killed_at_any_point_is_completed(kept: Kept, settings: Settings, point: str) -> None:
    file = kept.add(expires_after_s=0 if point == "expiring" else None)
    time.sleep(0.01)
    killed(point, file.id, settings)
    with pytest.raises(FileNotFound):
        kept.records.get(file.id)
    assert kept.objects() == ([] if point == "removed" else [file.object_name])
    again = f"{kept.store.db.prefix}file_garbage"
    assert kept.store.db.redis.zscore(again, file.id) > time.time() * 1000 + 30_000
    kept.store.db.redis.zadd(again, {file.id: int(time.time() * 1000) - 1})  # a minute later
    assert kept.keeper.drop_expired() == 1
    assert (kept.objects(), kept.held()) == ([], set())


@pytest.mark.usefixtures("short_lease")
def test_a_writer_that_was_silent_for_too_long_makes_no_file(kept: Kept) -> None:
    with kept.keeper.begin() as upload:
        upload.write(b"data")
        time.sleep(0.25)
        with pytest.raises(FileStoreUnavailable, match="was discarded"):
            upload.finish("a", Purpose.BATCH)
    assert (kept.objects(), kept.held()) == ([], set())


@pytest.mark.usefixtures("short_lease")
def test_a_commit_that_took_too_long_makes_no_file(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the last renewal and the record: the object stands already, and may just be being removed."""
    create = kept.records.create

    def late(new: NewFile) -> FileRecord:
        time.sleep(0.25)
        return create(new)

    monkeypatch.setattr(kept.records, "create", late)
    with kept.keeper.begin() as upload, pytest.raises(FileStoreUnavailable, match="was discarded"):
        upload.finish("a", Purpose.BATCH)
    assert (kept.objects(), kept.held()) == ([], set())


def test_a_writer_that_goes_on_is_not_given_up(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_records, "WRITER_LEASE_MS", 3000)
    monkeypatch.setattr(file_keeper, "RENEW_S", 0.2)
    with kept.keeper.begin() as upload:
        for _ in range(16):  # longer than a lease
            upload.write(b"data")
            time.sleep(0.25)
            assert kept.keeper.drop_expired() == 0
        file = upload.finish("a", Purpose.BATCH)
    assert get(kept.keeper.objects, file.object_name) == b"data" * 16


@pytest.mark.usefixtures("again_soon")
def test_a_name_waits_until_its_earlier_object_is_removed(kept: Kept) -> None:
    with kept.keeper.begin("file_mine") as upload:
        upload.finish("a", Purpose.BATCH)
    kept.records.drop("file_mine")
    with pytest.raises(FileStoreUnavailable, match="still being removed"):
        kept.keeper.begin("file_mine")
    time.sleep(1.05)
    assert kept.keeper.drop_expired() == 1
    with kept.keeper.begin("file_mine") as upload:
        upload.finish("a", Purpose.BATCH)


class Stuck(LocalStore):
    """Refuses to remove one object."""

    def delete(self, name: str, missing_ok: bool = False) -> None:
        if name == "files/file_0":
            raise FileStoreUnavailable("stuck")
        super().delete(name, missing_ok)


@pytest.mark.usefixtures("again_soon")
def test_one_object_that_cannot_be_removed_does_not_stop_the_others(kept: Kept, settings: Settings) -> None:
    kept.keeper.objects = Stuck(Path(settings.files))
    for file_id in ("file_0", *(new_file_id() for _ in range(20))):
        with kept.keeper.begin(file_id) as upload:
            upload.finish("a", Purpose.BATCH, expires_after_s=0)
    give_up = time.monotonic() + 60
    while kept.objects() != ["files/file_0"]:
        with suppress(FileStoreUnavailable):
            kept.keeper.drop_expired()
        assert time.monotonic() < give_up
        time.sleep(0.1)


def test_a_store_that_is_away_when_a_file_is_deleted(
    kept: Kept, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """The record is gone; the object follows when the store is back."""
    file = kept.add()
    folder = Path(settings.files)
    folder.rename(folder.with_suffix(".away"))
    with caplog.at_level(logging.WARNING):
        kept.keeper.delete(file.id)
    assert f"the object of {file.id} is removed later" in caplog.text
    with pytest.raises(FileNotFound):
        kept.records.get(file.id)
    again = f"{kept.store.db.prefix}file_garbage"
    kept.store.db.redis.zadd(again, {file.id: 1})
    with pytest.raises(FileStoreUnavailable):
        kept.keeper.drop_expired()
    folder.with_suffix(".away").rename(folder)
    kept.store.db.redis.zadd(again, {file.id: 1})
    assert kept.keeper.drop_expired() == 1
    assert kept.objects() == []


def test_a_store_that_is_away_when_a_file_is_begun(kept: Kept, settings: Settings) -> None:
    Path(settings.files).parent.mkdir(exist_ok=True)
    Path(settings.files).write_text("a file where the folder should be")
    with pytest.raises(FileStoreUnavailable):
        kept.keeper.begin()
    assert kept.held() == set()


def test_redis_is_away(own_redis: RedisServer, tmp_path: Path) -> None:
    settings = fast_settings(own_redis, files=str(tmp_path / "files"), redis_url=own_redis.within(1))
    store = JobStore(settings)
    kept = Kept(FileManager(make_store(settings.files), FileRecords(store.db)), store)
    file = kept.add()
    upload = kept.keeper.begin()
    upload.write(b"data")
    own_redis.freeze()
    for call in (
        lambda: kept.keeper.begin(),
        lambda: kept.records.get(file.id),
        lambda: kept.records.page(9),
        lambda: kept.keeper.delete(file.id),
        lambda: kept.keeper.drop_expired(),
        lambda: upload.finish("a", Purpose.BATCH),
    ):
        with pytest.raises(StoreUnavailable):
            call()
    upload.abort()
    own_redis.thaw()
    assert kept.objects() == [file.object_name]
    store.close()


def test_a_record_whose_object_somebody_removed(kept: Kept) -> None:
    file = kept.add()
    kept.keeper.objects.delete(file.object_name)
    with pytest.raises(ObjectMissing):
        kept.keeper.objects.open(file.object_name)
    kept.keeper.delete(file.id)
    assert kept.held() == set()
