"""An exclusive lock on a folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from time import sleep

from cli.base.errors import CliError
from cli.processes.private_files import FILE, FOLDER
from common.held_process import HeldProcess

PROCESSES = Path("/proc")
RETRIES, RETRY_S = 100, 0.01  # to outlast readers that briefly hold the lock in is_locked()


class FolderLock:
    """An flock on FOLDER/lock: the kernel releases it when the process ends."""

    def __init__(self, folder: Path, holder: str) -> None:
        self._folder = folder
        self._holder = holder
        self._fd: int | None = None

    def acquire(self) -> None:
        """Create the folder and lock it. Raises CliError if another process holds the lock."""
        path = self._folder / "lock"
        while self._fd is None:
            try:
                self._folder.mkdir(FOLDER, parents=True, exist_ok=True)
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE)
            except OSError as error:
                raise CliError(f"cannot use the folder {self._folder}: {error.strerror}") from None
            try:
                _lock(fd)
                if not path.exists() or os.fstat(fd).st_ino != path.stat().st_ino:
                    os.close(fd)  # its last holder removed the folder meanwhile: lock the new one
                    continue
            except BlockingIOError:
                pid = os.read(fd, 32).decode(errors="replace").strip()
                os.close(fd)
                raise CliError(f"{self._holder} is using {self._folder} (process {pid or '?'})") from None
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
            self._fd = fd

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _lock(fd: int) -> None:
    """Lock the file. Raises BlockingIOError if another process holds it. Waits for is_locked() of others."""
    for _ in range(RETRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # raises where somebody has it
            fcntl.flock(fd, fcntl.LOCK_UN)
            sleep(RETRY_S)
        else:
            return
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(folder: Path) -> bool:
    """Whether a live process holds the lock of the folder."""
    try:
        with (folder / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # nobody has ever used it, or it is not ours
        return False
    return False


def holder(folder: Path) -> HeldProcess | None:
    """The process that holds the lock of the folder, to be closed; None if nobody does.

    Raises CliError if its number is not that of a holder, as where that runs in a container.
    """
    lock = folder / "lock"
    for _ in range(RETRIES):  # a new holder writes its number after it has locked the file
        if not is_locked(folder):
            return None
        with contextlib.suppress(OSError, ValueError):
            held = HeldProcess(int(lock.read_text(encoding="ascii")))
            if _has_open(held.pid, lock):
                return held
            held.close()
        sleep(RETRY_S)
    raise CliError(f"{folder} is in use by a process of another user, or in a container")


def _has_open(pid: int, lock: Path) -> bool:
    """Where the system shows it; else its number is believed."""
    with contextlib.suppress(OSError):  # of another user, or it has just ended
        files = (PROCESSES / str(pid) / "fd").iterdir() if PROCESSES.is_dir() else [lock]
        return any(_is_same(file, lock) for file in files)
    return False


def _is_same(file: Path, lock: Path) -> bool:
    try:
        return file.samefile(lock)
    except OSError:  # a pipe, or closed by now
        return False
