"""The file store: the same promises for a folder and for a bucket, each on the real thing."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tasks.base.errors import BadObjectName, ObjectMissing, SettingsError
from tasks.files.base import MAX_NAME, FileStore
from tasks.files.factory import make_store
from tasks.files.local import PARTIAL
from tests.support.files import get, put
from tests.support.peers.s3 import S3Server

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
LARGE = os.urandom(1024 * 1024) * 12  # three parts of an upload to S3
NAME = "files/file_a"


@pytest.fixture(params=["folder", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "store")
    server: S3Server = request.getfixturevalue("s3_server")
    return f"s3://{server.new_bucket()}/some/prefix"


@pytest.fixture
def objects(url: str) -> Iterator[FileStore]:
    store = make_store(url)
    yield store
    store.close()


def child(url: str, code: str) -> subprocess.Popen[str]:
    """Another process that runs code with `store`."""
    head = f"from tasks.files.factory import make_store; store = make_store({url!r})\n"
    command = [sys.executable, "-c", head + code]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)


def in_child(url: str, code: str) -> int:
    """Its exit code."""
    with child(url, code) as process:
        return process.wait(60)


@pytest.mark.parametrize("data", [b"", b"x", LARGE], ids=["empty", "small", "large"])
def test_what_is_written_is_read(objects: FileStore, data: bytes) -> None:
    put(objects, NAME, data)
    assert get(objects, NAME) == data
    assert objects.size(NAME) == len(data)
    with objects.local_copy(NAME) as (copy, copying):
        for _ in copying:
            pass
        copy.seek(len(data) // 2)
        assert copy.read() == data[len(data) // 2 :]
        assert os.fstat(copy.fileno()).st_size == len(data)


def test_single_bytes_and_lines(objects: FileStore) -> None:
    lines = [b"line %d\n" % n for n in range(1000)]
    with objects.open_new(NAME) as new:
        for line in lines:
            new.write(line)
    with objects.open(NAME) as file:
        assert list(file) == lines


def test_a_reader_seeks_as_a_file_does(objects: FileStore) -> None:
    put(objects, NAME, LARGE)
    like = io.BytesIO(LARGE)
    with objects.open(NAME) as file:
        assert file.seekable()
        for offset, whence in [(7, 0), (-5, 2), (-100_000, 1), (5_000_000, 0), (3, 1), (10, 2), (0, 0)]:
            assert file.seek(offset, whence) == like.seek(offset, whence)
            assert file.tell() == like.tell()
            assert file.read(70_000) == like.read(70_000)
        with pytest.raises(OSError, match=r"(?i)invalid|before the start"):
            file.seek(-1)


def test_a_range_ends_where_the_object_ends(objects: FileStore) -> None:
    put(objects, NAME, b"0123456789")
    for start, end in [(0, 3), (3, 10), (8, 99), (10, 99), (99, 100), (5, 5), (5, 3), (0, 10)]:
        assert objects.read_range(NAME, start, end) == b"0123456789"[start:end]


def test_nothing_appears_before_the_end(objects: FileStore) -> None:
    new = objects.open_new(NAME)
    new.write(LARGE)
    assert objects.list("files") == []
    with pytest.raises(ObjectMissing):
        objects.size(NAME)
    new.commit()
    assert objects.list("files") == [NAME]


@pytest.mark.parametrize("data", [b"new", LARGE], ids=["small", "large"])
def test_an_error_leaves_what_was_there(objects: FileStore, data: bytes) -> None:
    put(objects, NAME, b"old")

    def broken() -> None:
        with objects.open_new(NAME) as new:
            new.write(data)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert get(objects, NAME) == b"old"
    assert objects.sweep(-3600) == 0, "no unfinished upload is left"
    put(objects, NAME, data)
    assert get(objects, NAME) == data


@pytest.mark.parametrize("size", [1000, len(LARGE)], ids=["small", "large"])
def test_a_killed_writer_leaves_nothing_that_is_seen(objects: FileStore, url: str, size: int) -> None:
    code = f"new = store.open_new({NAME!r})\nnew.write(b'x' * {size})\nimport os; os.kill(os.getpid(), 9)"
    assert in_child(url, code) == -signal.SIGKILL
    assert objects.list("files") == []
    assert objects.sweep(100 * 365 * 24 * 3600) == 0, "one that young may be alive; moto's are all of 2010"
    unseen = 0 if url.startswith("s3") and size == 1000 else 1  # a small object is one request
    assert objects.sweep(-3600) == unseen
    assert objects.sweep(-3600) == 0


def test_a_writer_that_is_forgotten_commits_nothing(objects: FileStore, url: str) -> None:
    code = f"new = store.open_new({NAME!r})\nnew.write(b'x' * {len(LARGE)})\ndel new\nimport gc; gc.collect()"
    assert in_child(url, code) == 0
    assert objects.list("files") == []


def test_processes_see_at_once_what_others_did(objects: FileStore, url: str) -> None:
    assert objects.list("files") == []
    code = f"with store.open_new({NAME!r}) as new: new.write(b'theirs')\n"
    code += f"print('written', flush=True); input(); store.delete({NAME!r})"
    with child(url, code) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "written\n"
        assert objects.list("files") == [NAME]
        assert get(objects, NAME) == b"theirs"
        other.stdin.write("\n")
        other.stdin.close()
        assert other.wait(60) == 0
    assert objects.list("files") == []
    with pytest.raises(ObjectMissing):
        objects.size(NAME)


@pytest.mark.parametrize("name", ["files/file_none", "files", "files/file_a/below"])
def test_a_missing_object_is_said_to_be_missing(objects: FileStore, name: str) -> None:
    put(objects, NAME)
    for call in (
        lambda: objects.open(name),
        lambda: objects.size(name),
        lambda: objects.read_range(name, 0, 1),
        lambda: objects.read_range(name, 0, 0),
        lambda: objects.delete(name),
        lambda: objects.local_copy(name).__enter__(),
    ):
        with pytest.raises(ObjectMissing, match=f"^the file store has no object '{name}'$"):
            call()
    objects.delete(name, missing_ok=True)
    assert get(objects, NAME) == b"data"


BAD_NAMES = ["", "/etc/passwd", "../up", "a/../../up", "a//b", "a/", ".partial/x", "a/.b", "a\0b", "a b", "ä"]


@pytest.mark.parametrize("name", [*BAD_NAMES, "a" * (MAX_NAME + 1)])
def test_a_name_that_leaves_the_store_is_refused(objects: FileStore, name: str) -> None:
    for call in (objects.open_new, objects.open, objects.size, objects.delete, objects.list):
        with pytest.raises(BadObjectName):
            call(name)


def test_the_longest_name(objects: FileStore) -> None:
    name = "/".join(["a" * 127] * 4)[:MAX_NAME].ljust(MAX_NAME, "b")
    put(objects, name)
    assert get(objects, name) == b"data"
    assert list(objects.list("a" * 127)) == [name]


def test_list_is_in_order_and_below_the_prefix_alone(objects: FileStore) -> None:
    names = [f"batches/batch_x/parts/{n:06}" for n in range(12)]
    for name in [*reversed(names), "batches/batch_xy/parts/000001", "batches/batch_x2", "files/file_a"]:
        put(objects, name)
    assert objects.list("batches/batch_x") == names
    assert objects.list("batches/batch_x/parts") == names
    assert objects.list("batches/none") == []
    assert len(objects.list("batches")) == 14


def test_deleting_leaves_the_others(objects: FileStore) -> None:
    put(objects, "batches/x/parts/1")
    put(objects, "batches/x/parts/2")
    objects.delete("batches/x/parts/1")
    assert objects.list("batches") == ["batches/x/parts/2"]
    objects.delete("batches/x/parts/2")
    assert objects.list("batches") == []
    put(objects, "batches/x/parts/1")
    assert objects.list("batches") == ["batches/x/parts/1"]


def test_many_threads_at_once(objects: FileStore, url: str) -> None:
    """Each deletes what it wrote, so that the folder they share comes and goes under them."""
    turns = 5 if url.startswith("s3") else 60
    start = threading.Barrier(8)

    def work(n: int) -> None:
        start.wait()
        for turn in range(turns):
            name = f"batches/shared/{n}"
            put(objects, name, b"%d %d" % (n, turn))
            assert get(objects, name) == b"%d %d" % (n, turn)
            objects.delete(name)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert objects.list("batches") == []


def test_a_folder_holds_nothing_but_its_objects(tmp_path: Path) -> None:
    objects = make_store(f"file://{tmp_path}/store")
    put(objects, "batches/x/parts/1")
    objects.open_new("files/file_b").abort()
    objects.delete("batches/x/parts/1")
    assert sorted(path.name for path in (tmp_path / "store").rglob("*")) == [PARTIAL]


def test_s3_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(
        SettingsError, match=r"^MEDUSAQ_FILES: s3://b/p needs s3fs: pip install 'medusaq\[s3\]'$"
    ):
        make_store("s3://b/p")
