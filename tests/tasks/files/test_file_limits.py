"""How many files an owner may have, and their bytes together: reserved, counted and given back exactly."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tasks.base.errors import FilesLimit, FileStoreUnavailable, IdempotencyConflict
from tasks.batches.store import BatchStore
from tasks.files import records as file_records
from tasks.files.base import FileStore
from tasks.files.manager import FileManager
from tasks.files.records import FileRecord, FileRecords, Purpose
from tasks.records.api_key import Limits
from tasks.records.batch import NewBatch
from tasks.schema.openai_requests import CHAT
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tasks.store.scripts import Argument
from tests.support.files import Kept
from tests.support.servers import RedisServer, fast_settings

Add = Callable[..., FileRecord]
ROOM = 1000  # bytes


@pytest.fixture
def owner(store: JobStore) -> str:
    return KeyStore(store.db).create("a", Limits(max_files=3, max_files_bytes=ROOM))[0].id


@pytest.fixture
def add(kept: Kept, owner: str) -> Add:
    """An upload by an owner, which declares some bytes more than the file has."""

    def added(size: int, declared: int | None = None, owner: str = owner, **fields: Any) -> FileRecord:
        with kept.keeper.begin(owner=owner, most_bytes=declared or size) as upload:
            upload.write(b"x" * size)
            return upload.finish("a.jsonl", Purpose.BATCH, owner=owner, **fields)

    return added


def counted(store: JobStore, owner: str) -> tuple[int, int]:
    """Files and bytes."""
    files, held = (
        store.db.redis.hget(f"{store.db.prefix}{name}", owner) for name in ("file_counts", "file_bytes")
    )
    return int(files or 0), int(held or 0)


def test_files_of_one_owner(store: JobStore, kept: Kept, owner: str, add: Add) -> None:
    first, *_ = [add(10) for _ in range(3)]
    with pytest.raises(FilesLimit, match=r"3 files with 30 bytes are kept already, .* at most 3 files"):
        add(10)
    other = KeyStore(store.db).create("b", Limits(max_files=1))[0].id
    add(10, owner=other)
    with pytest.raises(FilesLimit):
        add(10, owner=other)
    kept.keeper.delete(first.id, owner)
    add(10)
    assert counted(store, owner) == (3, 30)
    assert len(kept.objects()) == 4


def test_bytes_of_one_owner(store: JobStore, kept: Kept, owner: str, add: Add) -> None:
    first = add(ROOM - 100)
    with pytest.raises(FilesLimit, match=r"900 bytes are kept already, and 101 bytes more .* 1,000 bytes"):
        add(101)
    add(100)
    kept.keeper.delete(first.id, owner)
    add(ROOM - 100)
    assert counted(store, owner) == (2, ROOM)


def test_owners_without_limits_of_their_own(
    redis_server: RedisServer, files: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_records, "DEFAULT_MAX_FILES", 2)
    store = JobStore(fast_settings(redis_server, max_files_bytes=50))
    kept = Kept(FileManager(files, FileRecords(store.db)), store)
    key = KeyStore(store.db).create("a", Limits())[0].id
    for owner in ("anonymous", key):
        with kept.keeper.begin(owner=owner, most_bytes=40) as upload:
            upload.finish("a", Purpose.BATCH, owner=owner)
        with pytest.raises(FilesLimit):
            kept.keeper.begin(owner=owner, most_bytes=51)
        with kept.keeper.begin(owner=owner, most_bytes=50) as upload:
            upload.finish("a", Purpose.BATCH, owner=owner)
        with pytest.raises(FilesLimit):
            kept.keeper.begin(owner=owner, most_bytes=0)
    store.close()


def test_what_is_being_uploaded_counts_as_declared(store: JobStore, kept: Kept, owner: str, add: Add) -> None:
    with kept.keeper.begin(owner=owner, most_bytes=600):
        assert counted(store, owner) == (1, 600)
        with pytest.raises(FilesLimit):
            add(401)
        with kept.keeper.begin(owner=owner, most_bytes=400), pytest.raises(FilesLimit):
            add(1)
    assert counted(store, owner) == (0, 0), "both were given up"
    add(10, declared=ROOM)
    assert counted(store, owner) == (1, 10), "what it has, in place of what was declared"


@pytest.mark.usefixtures("short_lease", "again_soon")
def test_an_upload_whose_gateway_was_killed_gives_its_place_back(
    store: JobStore, kept: Kept, owner: str, add: Add
) -> None:
    kept.keeper.objects.open_new("files/other").abort()  # makes the folder
    kept.records.begin("file_lost", owner, ROOM)  # nobody ends it
    with pytest.raises(FilesLimit):
        add(1)
    time.sleep(0.25)
    assert kept.keeper.drop_expired() == 1
    assert counted(store, owner) == (0, 0)
    assert not store.db.redis.exists(f"{store.db.prefix}file_reserved")


@pytest.mark.usefixtures("short_lease", "again_soon")
def test_an_upload_that_was_given_up_counts_once(store: JobStore, kept: Kept, owner: str) -> None:
    with kept.keeper.begin(owner=owner, most_bytes=ROOM) as upload:
        time.sleep(0.25)
        kept.keeper.drop_expired()
        with pytest.raises(FileStoreUnavailable, match="was discarded"):
            upload.finish("a", Purpose.BATCH, owner=owner)
    assert counted(store, owner) == (0, 0)


def test_a_repeated_upload_counts_once(store: JobStore, owner: str, add: Add) -> None:
    first = add(10, idempotency_key="k")
    assert add(10, idempotency_key="k") == first
    with pytest.raises(IdempotencyConflict):
        add(11, idempotency_key="k")
    assert counted(store, owner) == (1, 10)


def test_an_idempotency_key_is_forgotten_with_its_file(
    store: JobStore, kept: Kept, owner: str, add: Add
) -> None:
    first = add(10, idempotency_key="k")
    kept.keeper.delete(first.id, owner)
    assert not store.db.redis.keys(f"{store.db.prefix}idem:*")
    assert add(11, idempotency_key="k").id != first.id


def test_scripts_that_run_twice_count_once(
    store: JobStore, kept: Kept, owner: str, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a connection broke before the answer."""
    once = store.db.scripts.run

    def twice(name: str, *args: Argument) -> Any:
        once(name, *args)
        return once(name, *args)

    monkeypatch.setattr(store.db.scripts, "run", twice)
    monkeypatch.setattr(kept.records, "drop", lambda *args: once("files/delete", args[0], 1000, args[1]))
    file = add(10, declared=50)
    assert counted(store, owner) == (1, 10)
    with kept.keeper.begin(owner=owner, most_bytes=20):
        assert counted(store, owner) == (2, 30)
    assert counted(store, owner) == (1, 10)
    kept.keeper.delete(file.id, owner)
    assert counted(store, owner) == (0, 0)


def test_an_expired_file_gives_its_place_back(store: JobStore, kept: Kept, owner: str, add: Add) -> None:
    add(ROOM, expires_after_s=0)
    time.sleep(0.01)
    assert kept.keeper.drop_expired() == 1
    assert counted(store, owner) == (0, 0)


def test_a_file_of_an_earlier_release_was_never_counted(
    store: JobStore, kept: Kept, owner: str, add: Add
) -> None:
    old = add(400)
    store.db.redis.hdel(f"{store.db.prefix}file:{old.id}", "counted", "note")
    store.db.redis.delete(f"{store.db.prefix}file_counts", f"{store.db.prefix}file_bytes")
    add(100)
    kept.keeper.delete(old.id, owner)
    assert counted(store, owner) == (1, 100)


def test_files_of_results_count_and_are_never_refused(
    store: JobStore, kept: Kept, owner: str, add: Add
) -> None:
    add(ROOM)
    with kept.keeper.begin("file_x_output") as out:
        out.write(b"y" * ROOM)
        result = out.finish("out.jsonl", Purpose.BATCH_OUTPUT, owner=owner)
    assert counted(store, owner) == (2, 2 * ROOM)
    kept.keeper.delete(result.id, owner)
    assert counted(store, owner) == (1, ROOM)


@pytest.fixture
def batches(store: JobStore) -> BatchStore:
    return BatchStore(store.db)


def test_the_copies_that_live_batches_make_of_their_input(
    store: JobStore, kept: Kept, batches: BatchStore, owner: str, add: Add
) -> None:
    """Else a single file, run by a thousand batches, would fill the disk."""
    file = add(ROOM // 3)
    asked = [NewBatch(endpoint=CHAT, input_file_id=file.id, owner=owner) for _ in range(3)]
    made = [batches.create(new) for new in asked[:2]]
    assert batches.create(asked[0]) == made[0], "it counts once"
    with pytest.raises(FilesLimit):
        batches.create(asked[2])
    assert counted(store, owner) == (1, 3 * file.bytes)
    batches.lead("me", {"": 64})
    batches.finish("me", made[0].id, "completed")
    batches.finish("me", made[0].id, "completed")
    assert counted(store, owner) == (1, 2 * file.bytes)
    batches.create(asked[2])
    for batch in (made[1], asked[2]):
        batches.finish("me", batch.id, "cancelled")
    kept.keeper.delete(file.id, owner)
    assert counted(store, owner) == (0, 0)
