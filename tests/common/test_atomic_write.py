"""Files replaced whole or not at all: each way of failing is caused, leaves the old content and no part."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from common.atomic_write import atomic_file, atomic_path, atomic_write, check_writable, sync_path

ROOT = Path(__file__).parents[2]
LARGE = b"x" * 1_000_000  # more than a buffered stream holds back


def by_content(target: Path, content: bytes) -> None:
    atomic_write(target, content, durable=True)


def by_stream(target: Path, content: bytes) -> None:
    with atomic_file(target, durable=True) as file:
        file.write(content)


def by_name(target: Path, content: bytes) -> None:
    with atomic_path(target, durable=True) as part:
        part.write_bytes(content)


WRITERS = [by_content, by_stream, by_name]
Write = Callable[[Path, bytes], None]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "file[1].txt"
    path.parent.mkdir()
    path.write_bytes(b"old")
    return path


def holds(target: Path, content: bytes) -> bool:
    return target.read_bytes() == content and list(target.parent.iterdir()) == [target]


def failing(number: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("write", WRITERS)
def test_the_new_content_takes_the_place_of_the_old(target: Path, write: Write) -> None:
    write(target, b"new")
    assert holds(target, b"new")
    target.unlink()
    write(target, LARGE)
    assert holds(target, LARGE)


def test_text_is_written_as_utf8(target: Path) -> None:
    atomic_write(target, "größer\n", durable=False)
    assert holds(target, "größer\n".encode())


def test_the_mode_is_that_of_any_new_file(target: Path) -> None:
    atomic_write(target, b"new", durable=False)
    (other := target.with_name("other")).touch()
    assert target.stat().st_mode == other.stat().st_mode


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("call", ["os.fsync", "pathlib.Path.replace"])
def test_a_failure_leaves_what_was_there(
    target: Path, write: Write, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, failing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        write(target, b"new")
    assert holds(target, b"old")


FULL = """
import resource, signal, sys
from pathlib import Path
from tests.common import test_atomic_write
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    getattr(test_atomic_write, sys.argv[1])(Path(sys.argv[2]), test_atomic_write.LARGE)
except OSError as error:
    sys.exit(error.strerror)
"""


@pytest.mark.parametrize("write", WRITERS)
def test_a_write_past_the_room_leaves_what_was_there(target: Path, write: Write) -> None:
    command = [sys.executable, "-c", FULL, write.__name__, str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "File too large\n")
    assert holds(target, b"old")


@pytest.mark.parametrize("replacing", [atomic_file, atomic_path])
def test_an_error_in_the_block_leaves_what_was_there(
    target: Path, replacing: Callable[..., AbstractContextManager[object]]
) -> None:
    with pytest.raises(KeyboardInterrupt), replacing(target, durable=True):
        raise KeyboardInterrupt
    assert holds(target, b"old")


def test_a_target_that_is_a_folder(target: Path) -> None:
    with pytest.raises(IsADirectoryError):
        atomic_write(target.parent, b"new", durable=True)
    assert holds(target, b"old")
    assert list(target.parent.parent.iterdir()) == [target.parent]


@pytest.mark.parametrize("write", WRITERS)
def test_the_content_is_on_the_disk_before_the_name_and_the_name_at_the_end(
    target: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bytes]] = []
    fsync, before = os.fsync, target.stat().st_ino

    def noted(handle: int) -> None:
        kind = "folder" if os.path.samestat(os.fstat(handle), target.parent.stat()) else "file"
        synced.append((kind, target.read_bytes()))
        fsync(handle)

    monkeypatch.setattr("os.fsync", noted)
    write(target, b"new")
    assert synced == [("file", b"old"), ("folder", b"new")]
    assert target.stat().st_ino != before


def test_what_need_not_be_durable_does_not_wait_for_the_disk(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", failing(errno.EIO))
    atomic_write(target, b"new", durable=False)
    with atomic_path(target, durable=False) as part:
        part.write_bytes(b"newer")
    assert holds(target, b"newer")


def test_a_file_system_that_cannot_sync_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", failing(errno.EINVAL))
    sync_path(tmp_path)
    monkeypatch.setattr("os.fsync", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        sync_path(tmp_path)


KILLED = """
import os, signal, sys
from pathlib import Path
from common.atomic_write import atomic_file
with atomic_file(Path(sys.argv[1]), durable=True):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_in(target: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(target)], cwd=ROOT, timeout=60, check=False)


def test_what_a_killed_process_left_is_removed_by_the_next(target: Path) -> None:
    other = target.with_name("file1.txt")
    kill_in(target)
    kill_in(other)
    assert len([*target.parent.glob("*.part")]) == 2
    atomic_write(target, b"new", durable=False)
    [left] = target.parent.glob("*.part")
    assert left.name.startswith(other.name), "that of another target stays"


@pytest.mark.parametrize("name", ["file[1].txt.part", "file[1].txt.1.part", "file[1].txt.zip.part"])
def test_files_of_others_that_are_named_alike_stay(target: Path, name: str) -> None:
    other = target.with_name(name)
    other.write_bytes(b"a download")
    atomic_write(target, b"new", durable=False)
    assert other.read_bytes() == b"a download"


def test_the_part_of_a_living_writer_stays(target: Path) -> None:
    with atomic_file(target, durable=False) as outer:
        atomic_write(target, b"inner", durable=False)
        outer.write(b"outer")
    assert holds(target, b"outer")


def test_a_part_that_is_taken_for_a_leftover_at_its_birth_is_made_again(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may look for leftovers between the creation of a part and its lock."""
    flock, removed = fcntl.flock, []

    def late(stream: int, operation: int) -> None:
        if not removed:
            [part] = target.parent.glob("*.part")
            removed.append(part)
            part.unlink()
        flock(stream, operation)

    monkeypatch.setattr("fcntl.flock", late)
    atomic_write(target, b"new", durable=False)
    assert removed
    assert holds(target, b"new")


def test_a_file_system_without_locks(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No part is removed there but one's own: whether its writer lives cannot be told."""
    kill_in(target)
    monkeypatch.setattr("fcntl.flock", failing(errno.ENOLCK))
    atomic_write(target, b"new", durable=False)
    assert target.read_bytes() == b"new"
    assert len([*target.parent.iterdir()]) == 2


def test_what_cannot_be_written_is_refused_before(target: Path) -> None:
    check_writable(target)
    assert holds(target, b"old")
    with pytest.raises(NotADirectoryError):
        check_writable(target / "below")
    with pytest.raises(OSError, match="name too long"):
        check_writable(target.with_name("n" * 255))
