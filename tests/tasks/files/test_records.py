"""Files and their records: made, listed, deleted, expired, and made again with an idempotency key."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tasks.base.errors import FileInUse, FileNotFound, IdempotencyConflict
from tasks.files.records import NewFile, Purpose, new_file_id
from tasks.store.jobs import JobStore
from tests.support.files import Kept, get


def test_a_file_is_created_whole(kept: Kept) -> None:
    before = time.time()
    file = kept.add(b"0123", filename="ä b.jsonl", expires_after_s=3600)
    assert file == kept.records.get(file.id)
    assert file.id.startswith("file_")
    assert (file.bytes, file.filename, file.purpose) == (4, "ä b.jsonl", Purpose.BATCH)
    assert file.created_at == pytest.approx(before, abs=1)
    assert file.expires_at == pytest.approx(file.created_at + 3600)
    assert get(kept.keeper.objects, file.object_name) == b"0123"
    assert kept.add().expires_at is None


def test_as_json(kept: Kept) -> None:
    file = replace(kept.add(b"0123"), created_at=1234.9, expires_at=2000.9)
    assert file.to_json() == {
        "id": file.id,
        "object": "file",
        "bytes": 4,
        "created_at": 1234,
        "expires_at": 2000,
        "filename": "a.jsonl",
        "purpose": "batch",
        "status": "processed",
    }


def test_an_unfinished_upload_leaves_nothing(kept: Kept) -> None:
    with kept.keeper.begin() as upload:
        upload.write(b"data")
        assert kept.held() == {"file_begun"}
    assert (kept.objects(), kept.held()) == ([], set())
    with pytest.raises(FileNotFound, match=upload.id):
        kept.records.get(upload.id)


def test_pages(kept: Kept) -> None:
    ids = [kept.add().id for _ in range(5)]
    with kept.keeper.begin("file_out") as upload:
        upload.finish("out.jsonl", Purpose.BATCH_OUTPUT)

    def page(*args: Any, **kwargs: Any) -> tuple[list[str], bool]:
        found = kept.records.page(*args, **kwargs)
        return [file.id for file in found.files], found.has_more

    assert page(10) == (["file_out", *ids[::-1]], False)
    assert page(2) == (["file_out", ids[4]], True)
    assert page(2, after=ids[4]) == ([ids[3], ids[2]], True)
    assert page(2, after=ids[2]) == ([ids[1], ids[0]], False)
    assert page(2, after=ids[0]) == ([], False)
    assert page(10, purpose=Purpose.BATCH_OUTPUT) == (["file_out"], False)
    assert page(2, purpose=Purpose.BATCH, oldest_first=True) == (ids[:2], True)
    assert page(9, purpose=Purpose.BATCH, oldest_first=True, after=ids[1]) == (ids[2:], False)
    assert page(9, purpose=Purpose.BATCH, after="file_out") == (ids[::-1], False)
    with pytest.raises(FileNotFound, match="file_none"):
        kept.records.page(2, after="file_none")


def test_delete_removes_record_and_object(kept: Kept) -> None:
    file, other = kept.add(), kept.add()
    kept.keeper.delete(file.id)
    assert kept.objects() == [other.object_name]
    for call in (kept.records.get, kept.keeper.delete):
        with pytest.raises(FileNotFound):
            call(file.id)
    kept.keeper.delete(other.id)
    assert (kept.objects(), kept.held()) == ([], set())


def test_a_file_in_use_is_kept(kept: Kept, store: JobStore) -> None:
    file = kept.add(expires_after_s=0)
    store.db.redis.sadd(f"{store.db.prefix}file_uses:{file.id}", "batch_x")
    with pytest.raises(FileInUse, match=file.id):
        kept.keeper.delete(file.id)
    time.sleep(0.01)
    assert kept.keeper.drop_expired() == 0
    assert kept.records.get(file.id) == file
    assert get(kept.keeper.objects, file.object_name) == b"data"
    store.db.redis.srem(f"{store.db.prefix}file_uses:{file.id}", "batch_x")
    kept.keeper.delete(file.id)
    assert (kept.objects(), kept.held()) == ([], set())


def test_files_expire(kept: Kept) -> None:
    gone = [kept.add(expires_after_s=0) for _ in range(250)]
    stays = kept.add(expires_after_s=3600)
    time.sleep(0.01)
    assert kept.keeper.drop_expired() == len(gone)
    assert kept.objects() == [stays.object_name]
    assert [file.id for file in kept.records.page(100).files] == [stays.id]
    kept.keeper.delete(stays.id)
    assert kept.held() == set()


def test_idempotency_key(kept: Kept) -> None:
    first = kept.add(idempotency_key="k")
    assert kept.add(idempotency_key="k") == first
    for other in ({"data": b"other"}, {"filename": "b.jsonl"}, {"expires_after_s": 4000}):
        with pytest.raises(IdempotencyConflict, match=first.id):
            kept.add(idempotency_key="k", **other)
    assert kept.objects() == [first.object_name], "what was refused is not kept"
    assert kept.add(idempotency_key="l").id != first.id
    assert 0 < kept.store.db.redis.pttl(f"{kept.store.db.prefix}idem:file:k") <= 24 * 3600 * 1000


def test_idempotency_key_of_a_deleted_file_is_free(kept: Kept) -> None:
    first = kept.add(idempotency_key="k")
    kept.keeper.delete(first.id)
    assert kept.add(b"other", idempotency_key="k").id != first.id


def test_uploads_with_one_key_at_once_make_one_file(kept: Kept) -> None:
    def upload(n: int) -> str:
        try:
            return kept.add(b"%d" % (n % 2), idempotency_key="k").id
        except IdempotencyConflict as conflict:
            return str(conflict)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(upload, range(16)))
    (made,) = [file.id for file in kept.records.page(100).files]
    assert answers.count(made) == 8
    assert sum("another body" in answer for answer in answers) == 8
    assert kept.objects() == [f"files/{made}"]
    assert kept.held() == {"idem:file:k", f"file:{made}", "files", "files:batch"}


def test_create_repeated_with_the_same_id_changes_nothing(kept: Kept) -> None:
    """The client of Redis sends a command twice when the connection broke."""
    new = NewFile(new_file_id(), 4, "a", Purpose.BATCH, idempotency_key="k", body_hash="h")
    kept.records.begin(new.id)
    first = kept.records.create(new)
    assert kept.records.create(new) == first
    assert [file.id for file in kept.records.page(9).files] == [new.id]


def test_a_named_file_written_again_is_the_same_file(kept: Kept) -> None:
    """As by a finaliser that was killed before it noted its output."""
    for _ in range(2):
        with kept.keeper.begin("file_mine") as upload:
            upload.write(b"output")
            file = upload.finish("out.jsonl", Purpose.BATCH_OUTPUT)
        assert kept.records.get("file_mine") == file
    with kept.keeper.begin("file_mine") as upload:
        upload.write(b"broken off")
    assert kept.keeper.drop_expired() == 0
    assert get(kept.keeper.objects, "files/file_mine") == b"output"
    assert kept.records.page(9).files == (file,)
