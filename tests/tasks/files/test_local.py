"""A folder that refuses: a full disk, no permission, a broken disk, no folder at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tasks.base.errors import FileStoreUnavailable
from tasks.files.base import FileStore
from tasks.files.factory import make_store
from tests.support.files import put

ROOT = Path(__file__).parents[3]
NAME = "files/file_a"
NOBODY = 65534

# Writes until the store refuses; then says how, what is left, and whether a small object still fits.
FILL = """
import sys
from pathlib import Path
from tasks.base.errors import FileStoreFull
from tasks.files.factory import make_store
store = make_store(sys.argv[1])
with store.open_new("files/before") as new:
    new.write(b"kept")
try:
    with store.open_new("files/file_a") as new:
        for _ in range(64):
            new.write(b"x" * 262144)
except FileStoreFull as error:
    print(error)
print(store.list("files"), [path.name for path in Path(sys.argv[1], ".partial").iterdir()])
with store.open_new("files/after") as new:
    new.write(b"fits")
print(store.list("files"))
"""


def filled(folder: Path, *prefix: str, before: Callable[[], object] | None = None) -> list[str]:
    """The lines of FILL, run behind the prefix."""
    done = subprocess.run(
        [*prefix, sys.executable, "-c", FILL, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=before,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def on_a_small_disk(folder: Path) -> tuple[str, ...]:
    """A command before which 2 MB are mounted on the folder, in a namespace of its own: no root needed."""
    mount = f'mount -t tmpfs -o size=2m tmpfs {folder} && exec "$@"'
    return ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh")


def has_namespaces(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*on_a_small_disk(folder), "true"], capture_output=True).returncode == 0


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's right to pass every permission."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_full_disk(tmp_path: Path) -> None:
    """A real ENOSPC, on a file system of 2 MB."""
    if not has_namespaces(tmp_path):
        pytest.skip("no mount namespace for this user")
    refused, left, after = filled(tmp_path, *on_a_small_disk(tmp_path))
    assert (
        refused
        == f"the file store {tmp_path}: No space left on device: make room there, or choose another place"
    )
    assert left == "['files/before'] []"
    assert after == "['files/after', 'files/before']"


def test_a_file_over_the_limit_of_the_process(tmp_path: Path) -> None:
    """The same way out where no small disk can be mounted: `ulimit -f` makes the write itself fail."""
    import resource

    refused, left, after = filled(
        tmp_path, before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**21, 2**21))
    )
    assert refused == f"the file store {tmp_path}: File too large"
    assert left == "['files/before'] []"
    assert after == "['files/after', 'files/before']"


def calls(store: FileStore) -> list[Callable[[], object]]:
    return [
        lambda: store.open_new(NAME),
        lambda: store.open(NAME),
        lambda: store.size(NAME),
        lambda: store.read_range(NAME, 0, 1),
        lambda: store.delete(NAME),
        lambda: store.delete(NAME, missing_ok=True),
        lambda: store.list("files"),
        lambda: store.sweep(0),
    ]


def test_a_folder_without_permission(tmp_path: Path) -> None:
    store = make_store(str(tmp_path))
    put(store, NAME)
    tmp_path.chmod(0)
    try:
        with as_nobody():
            for call in calls(store):
                with pytest.raises(FileStoreUnavailable, match=r": Permission denied$") as caught:
                    call()
                assert type(caught.value) is FileStoreUnavailable
    finally:
        tmp_path.chmod(0o700)
    assert store.size(NAME) == 4


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    store = make_store(str(tmp_path / "store"))
    for call in calls(store)[:-2]:
        with pytest.raises(FileStoreUnavailable, match=r"Not a directory|no such folder|File exists"):
            call()


def test_a_folder_that_went_away_is_not_an_object_that_is_missing(tmp_path: Path) -> None:
    store = make_store(str(tmp_path / "store"))
    put(store, NAME)
    shutil.rmtree(tmp_path / "store")
    for call in calls(store)[1:6]:
        with pytest.raises(FileStoreUnavailable, match=r"store: there is no such folder$"):
            call()
    assert store.list("files") == []
    assert store.sweep(0) == 0


def test_a_disk_that_fails_while_it_is_read(tmp_path: Path) -> None:
    """/proc/self/mem answers the address 0 with EIO."""
    store = make_store(str(tmp_path))
    (tmp_path / "files").mkdir()
    (tmp_path / NAME).symlink_to("/proc/self/mem")
    for read in (lambda file: file.read(10), lambda file: file.read()):
        with store.open(NAME) as file, pytest.raises(FileStoreUnavailable, match=r"Input/output error$"):
            read(file)


def test_an_abort_after_a_failure_never_raises(tmp_path: Path) -> None:
    store = make_store(str(tmp_path / "store"))
    new = store.open_new(NAME)
    new.write(b"x")
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(FileStoreUnavailable, match=r"No such file or directory$"):
        new.commit()
    new.abort()
    assert not (tmp_path / "store").exists() or store.list("files") == []


def test_what_is_committed_has_been_handed_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file before it gets its name, then every folder with a new entry. Each call is made for real."""
    synced: list[tuple[str, bool]] = []
    root, target = tmp_path / "store", tmp_path / "store" / "batches" / "x" / "1"
    fsync = os.fsync

    def noted(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        shown = ".partial" if path.parent.name == ".partial" else str(path.relative_to(tmp_path))
        synced.append((shown, target.exists()))
        fsync(handle)

    if not Path("/proc/self/fd").exists():
        pytest.skip("paths of open files are read in /proc")
    monkeypatch.setattr(os, "fsync", noted)
    store = make_store(str(root))
    new = store.open_new("batches/x/1")
    assert synced == [(".", False), ("store", False)], "the store's own folders"
    synced.clear()
    new.write(b"data")
    new.commit()
    assert synced == [
        (".partial", False),
        ("store", False),
        ("store/batches", False),
        ("store/batches/x", True),
    ]
    synced.clear()
    store.delete("batches/x/1")
    assert synced == [("store/batches/x", False)]
