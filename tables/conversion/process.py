"""Starts conversions in child processes, and bounds how many there are at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from tables.conversion.options import TableOptions, Wanted

CPU_S = 120  # 50,000 rows of XLSX with 20 columns take 30 s
WALL_S = 900.0  # on a busy machine
MEMORY_BYTES = 1536 << 20  # addresses: a Parquet file of 50,000 long texts takes 900 MiB
OUTPUT_BYTES = 1 << 30  # of a written table
AT_ONCE = 4
FROM_PARENT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV")
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}  # glibc sets 64 MiB of addresses apart for each thread that allocates
ROOT = Path(__file__).parents[2]
STORAGE = "storage"
PREVIEW = "preview.json"


class ConversionFailed(Exception):
    """The message is one line; code: for the batch. storage: temporary files cannot be written."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.storage = code == STORAGE


class Seats:
    """Who may convert: AT_ONCE owners, one conversion each. Thread-safe."""

    def __init__(self, most: int = AT_ONCE) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._taken: set[str] = set()

    def take(self, owner: str) -> bool:
        """False if all are taken, or the owner has one."""
        with self._lock:
            if owner in self._taken or len(self._taken) >= self._most:
                return False
            self._taken.add(owner)
            return True

    def leave(self, owner: str) -> None:
        with self._lock:
            self._taken.discard(owner)


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
        "preview": {"name": PREVIEW, **asdict(wanted)},
        "limits": limits,
        "file_bytes": OUTPUT_BYTES,
    }


class Conversion:
    """A running conversion; close() ends it in any case.

    folder: of temporary files, in which the output is until close(). cut: values of the output that its
    format could not hold whole, after the end.
    """

    cut = 0

    def __init__(
        self,
        specification: Mapping[str, Any],
        table: BinaryIO,
        *,
        lines: BinaryIO | None = None,
        results: Sequence[BinaryIO] = (),
    ) -> None:
        """table, results: files to read from the start. lines: where the lines go."""
        files: dict[str, Any] = {"table": table.fileno(), "results": [file.fileno() for file in results]}
        if lines is not None:
            files["lines"] = lines.fileno()
        self._folder = tempfile.TemporaryDirectory(prefix="table-", ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        files["folder"] = self._folder.name
        limits = {"cpu_s": CPU_S, "memory_bytes": MEMORY_BYTES}
        passed = [table, *results, *([] if lines is None else [lines])]
        with tempfile.TemporaryFile() as file:
            file.write(json.dumps({**limits, **specification, **files}).encode())
            file.flush()
            for each in (table, *results):
                os.lseek(each.fileno(), 0, os.SEEK_SET)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tables.conversion.child", str(file.fileno())],
                cwd=ROOT,
                env={**{name: os.environ[name] for name in FROM_PARENT if name in os.environ}, **ONE_HEAP},
                stdin=subprocess.PIPE,  # closes with this process
                stdout=subprocess.PIPE,
                pass_fds=[file.fileno(), *(each.fileno() for each in passed)],
            )
        self._until = time.monotonic() + WALL_S

    def has_ended(self, wait_s: float = 0.0) -> bool:
        """Whether it has succeeded; waits so long at most. Raises ConversionFailed."""
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
            raise _killed(status)
        if "code" in found:
            raise ConversionFailed(found["code"], found["message"])
        self.cut = found.get("cut", 0)
        return True

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._folder.cleanup()


def _verdict(said: bytes) -> dict[str, Any] | None:
    """None if the process ended before its verdict."""
    try:
        return dict(json.loads(said))
    except ValueError:
        return None


def _killed(status: int) -> ConversionFailed:
    if -status in (signal.SIGXCPU, signal.SIGKILL):
        return ConversionFailed("table_too_large", f"the table takes more than {CPU_S} s of processor time")
    return ConversionFailed("invalid_table", "the table cannot be read: its reader ended unexpectedly")
