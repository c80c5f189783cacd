"""Runs conversions in child processes, while they have seats."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from tables.conversion.options import TableOptions, Wanted
from tables.conversion.seats import Seat

CPU_S = 120  # 50,000 rows of XLSX with 20 columns take 30 s
WALL_S = 900.0  # on a busy machine
PREVIEW_CPU_S = 5  # of at most 100 rows, and of counting, which ends earlier
MEMORY_BYTES = 1536 << 20  # addresses: a Parquet file of 50,000 long texts takes 900 MiB
OUTPUT_BYTES = 1 << 30  # of a written table
FROM_PARENT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV")
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}  # glibc sets 64 MiB of addresses apart for each thread that allocates
NICER = 5  # beside those in their first turn
ROOT = Path(__file__).parents[2]
STORAGE = "storage"
PREVIEW = "preview.json"


class ConversionFailed(Exception):
    """The message is one line; code: for the batch. storage: temporary files cannot be written."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.storage = code == STORAGE


def lines_spec(options: TableOptions, url: str, rows: int, line_bytes: int, all_bytes: int) -> dict[str, Any]:
    """The specification of a conversion of rows to lines."""
    limits = {"rows": rows, "line_bytes": line_bytes, "bytes": all_bytes}
    return {"options": asdict(options), "url": url, "limits": limits, "file_bytes": all_bytes}


def output_spec(
    options: TableOptions, name: str, *, usage: bool = False, safe_csv: bool = False
) -> dict[str, Any]:
    """The specification of a conversion of results to a table; the ending of its name tells the format."""
    output = {"name": name, "usage": usage, "safe_csv": safe_csv}
    return {"options": asdict(options), "output": output, "file_bytes": OUTPUT_BYTES}


def preview_spec(
    options: TableOptions, url: str, wanted: Wanted, rows: int, line_bytes: int
) -> dict[str, Any]:
    """The specification of a preview, which becomes the file PREVIEW. rows: that a table may have."""
    limits = {"rows": rows, "line_bytes": line_bytes, "bytes": OUTPUT_BYTES}
    return {
        "options": asdict(options),
        "url": url,
        "cpu_s": PREVIEW_CPU_S,
        "preview": {"name": PREVIEW, **asdict(wanted)},
        "limits": limits,
        "file_bytes": OUTPUT_BYTES,
    }


class Conversion:
    """Runs while its seat is held: has_ended() starts it, and ends it where the seat is lost, to start anew.

    close() ends it in any case. folder: of temporary files, in which the output is until close(). cut: values
    of the output that its format could not hold whole, after the end.
    """

    cut = 0
    folder: Path

    def __init__(
        self,
        seat: Seat,
        specification: Mapping[str, Any],
        table: BinaryIO,
        *,
        lines: BinaryIO | None = None,
        results: Sequence[BinaryIO] = (),
    ) -> None:
        """table, results: files to read from the start. lines: an empty file, where the lines go."""
        self._seat = seat
        self._specification = {"cpu_s": CPU_S, "memory_bytes": MEMORY_BYTES, **specification}
        self._read, self._lines = (table, *results), lines
        self._process: subprocess.Popen[bytes] | None = None
        self._gives_way = False

    def has_ended(self, wait_s: float = 0.0) -> bool:
        """Whether it has succeeded; waits so long at most. Raises ConversionFailed."""
        ended = self._process is not None and self._process.poll() is not None
        if not ended and not self._seat.held(0.0 if self._process is None else worked_s(self._process.pid)):
            self._stop()
            time.sleep(wait_s)
            return False
        if self._process is None:
            self._process = self._started()
        if self._seat.stays and not self._gives_way and not ended:
            self._gives_way = True
            pid = self._process.pid
            os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid) + NICER)
        try:
            status = self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            if time.monotonic() < self._until:
                return False
            self._process.kill()
            status = -signal.SIGXCPU
        assert self._process.stdout is not None
        found = _verdict(self._process.stdout.read())
        if found is None:
            raise _killed(status, self._specification["cpu_s"])
        if "code" in found:
            raise ConversionFailed(found["code"], found["message"])
        self.cut = found.get("cut", 0)
        return True

    def _started(self) -> subprocess.Popen[bytes]:
        table, *results = (file.fileno() for file in self._read)
        files: dict[str, Any] = {"table": table, "results": results}
        if self._lines is not None:
            files["lines"] = self._lines.fileno()
        self._folder = tempfile.TemporaryDirectory(prefix="table-", ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        files["folder"] = self._folder.name
        passed = [*self._read, *([] if self._lines is None else [self._lines])]
        for each in self._read:
            os.lseek(each.fileno(), 0, os.SEEK_SET)
        self._until = time.monotonic() + WALL_S
        self._gives_way = False
        with tempfile.TemporaryFile() as file:
            file.write(json.dumps({**self._specification, **files}).encode())
            file.flush()
            return subprocess.Popen(
                [sys.executable, "-m", "tables.conversion.child", str(file.fileno())],
                cwd=ROOT,
                env={**{name: os.environ[name] for name in FROM_PARENT if name in os.environ}, **ONE_HEAP},
                stdin=subprocess.PIPE,  # closes with this process
                stdout=subprocess.PIPE,
                pass_fds=[file.fileno(), *(each.fileno() for each in passed)],
            )

    def _stop(self) -> None:
        """As if it had not begun."""
        if self._process is None:
            return
        self.close()
        self._process = None
        if self._lines is not None:
            os.lseek(self._lines.fileno(), 0, os.SEEK_SET)
            os.ftruncate(self._lines.fileno(), 0)

    def close(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._folder.cleanup()


def worked_s(pid: int) -> float:
    """Processor time of a process so far; 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _verdict(said: bytes) -> dict[str, Any] | None:
    """None if the process ended before its verdict."""
    try:
        return dict(json.loads(said))
    except ValueError:
        return None


def _killed(status: int, cpu_s: int) -> ConversionFailed:
    if -status in (signal.SIGXCPU, signal.SIGKILL):
        return ConversionFailed("table_too_large", f"the table takes more than {cpu_s} s of processor time")
    return ConversionFailed("invalid_table", "the table cannot be read: its reader ended unexpectedly")
