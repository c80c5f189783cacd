"""A folder on a disk so small that it can be filled."""

from __future__ import annotations

import contextlib
import resource
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

SIZE_MB = 384  # room for the files of an hour of load, and for the log of Redis, which is written anew at 64
BLOCK = 1024 * 1024


class SmallDisk:
    """A tmpfs in the mount namespace of a process that only holds it; others reach it through /proc.

    No root is needed where users may make namespaces.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        mount = f"mount -t tmpfs -o size={SIZE_MB}m tmpfs {folder} && echo mounted && exec cat"
        command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount]
        self._holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        self.mounted = self._holder.stdout.readline() == b"mounted\n"
        self.folder = Path(f"/proc/{self._holder.pid}/root{folder}")

    def close(self) -> None:
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.wait(10)
        self._holder.stdout.close()

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Not a byte is free."""
        ballast = self.folder / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * BLOCK)
        try:
            yield
        finally:
            ballast.unlink()


def small_disk(folder: Path) -> SmallDisk | None:
    """None where this user may not mount one."""
    if shutil.which("unshare") is None:
        return None
    disk = SmallDisk(folder)
    if not disk.mounted or not disk.folder.is_dir():
        disk.close()
        return None
    return disk


@contextlib.contextmanager
def no_file_grows(pids: Sequence[int]) -> Iterator[None]:
    """Stands for a full disk where none can be mounted: these processes can write to no file."""
    before = [resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in pids]
    for pid, (_, hard) in zip(pids, before, strict=True):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        for pid, limits in zip(pids, before, strict=True):
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
