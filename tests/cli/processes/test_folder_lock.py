"""The lock of a folder: for one holder, and free to look at."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from cli.base.errors import CliError
from cli.processes import folder_lock
from cli.processes.folder_lock import FolderLock, holder, is_locked


def test_one_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    first, second = FolderLock(folder, "another"), FolderLock(folder, "another")
    assert not is_locked(folder)
    first.acquire()
    assert is_locked(folder)
    with pytest.raises(CliError, match=r"^another is using .*new \(process \d+\)$"):
        second.acquire()
    first.release()
    assert not is_locked(folder)
    second.acquire()
    second.release()


def test_who_only_looks_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = FolderLock(tmp_path, "another")
    (tmp_path / "lock").touch()
    with (tmp_path / "lock").open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)  # as held() has it, for as long as it takes
        monkeypatch.setattr(folder_lock, "sleep", lambda _: fcntl.flock(looking, fcntl.LOCK_UN))
        mine.acquire()
    assert is_locked(tmp_path)
    mine.release()


def test_who_looks_for_ever_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lock").touch()
    monkeypatch.setattr(folder_lock, "sleep", lambda _: None)
    with (tmp_path / "lock").open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        with pytest.raises(CliError, match="another is using"):
            FolderLock(tmp_path, "another").acquire()


def test_the_holder_is_who_holds_it(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    mine = FolderLock(tmp_path, "another")
    mine.acquire()
    held = holder(tmp_path)
    assert held is not None
    with held:
        assert held.pid == os.getpid()
    mine.release()
    assert holder(tmp_path) is None, "though its number is still there"
    assert (tmp_path / "lock").read_text() == str(os.getpid())


@pytest.mark.parametrize("content", [str(os.getppid()), "4194304", "", "x"])
@pytest.mark.slow
def test_a_number_that_is_not_the_holders_is_not_believed(tmp_path: Path, content: str) -> None:
    """As where the holder runs in a container, and another process here has its number."""
    mine = FolderLock(tmp_path, "another")
    mine.acquire()
    (tmp_path / "lock").write_text(content)
    with pytest.raises(CliError, match="of another user, or in a container"):
        holder(tmp_path)
    mine.release()
