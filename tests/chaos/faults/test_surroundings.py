"""That disks are full and clocks wrong for those that are meant, and for nobody else."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.faults.clock import Clock, compiled
from tests.chaos.faults.disk import no_file_grows, small_disk

ASKED = """
import errno, sys, time
for line in sys.stdin:
    try:
        with open(sys.argv[1], "ab") as file:
            file.write(b"x" * 100_000)
        print(time.time(), flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
"""


class Child:
    """Writes 100 kB to the file, and says the time or what was wrong."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()


@contextmanager
def child(file: Path, **env: str) -> Iterator[Child]:
    command = [sys.executable, "-c", ASKED, str(file)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **env}) as process:
        yield Child(process)


def test_a_small_disk_is_full_until_it_is_not(tmp_path: Path) -> None:
    disk = small_disk(tmp_path / "disk")
    if disk is None:
        pytest.skip("no mount namespace for this user")
    with child(disk.folder / "file") as writer:
        assert float(writer.ask())
        with disk.full():
            assert writer.ask() == errno.errorcode[errno.ENOSPC]
        assert float(writer.ask())
    assert not (tmp_path / "disk" / "file").exists(), "only those who go through /proc see it"
    disk.close()


def test_a_limit_on_files_stands_for_it(tmp_path: Path) -> None:
    with child(tmp_path / "file") as writer:
        assert float(writer.ask())
        with no_file_grows([writer.process.pid]):
            assert writer.ask() == errno.errorcode[errno.EFBIG]
        assert float(writer.ask())


def test_a_clock_is_set_for_one_process_while_it_runs(tmp_path: Path) -> None:
    library = compiled(tmp_path)
    if library is None:
        pytest.skip("no C compiler, or not Linux")
    clock = Clock(tmp_path / "clock", library)
    with child(tmp_path / "file", **clock.env) as told:
        for offset_s in (0, 3600, -3600, 0):
            clock.set(offset_s)
            assert float(told.ask()) - time.time() == pytest.approx(offset_s, abs=60)
