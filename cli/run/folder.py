"""RESULTS.run: the folder with the state of a run, locked by the process that runs it."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from cli.processes.folder_lock import FolderLock
from common.atomic_write import sync_path


class RunFolder:
    """A context manager. At the end, a folder without run.json is removed unless it is to be kept.

    run.json            the record (cli/run/state.py)
    order.jsonl         what becomes of each line of the input, in order (cli/run/shards.py)
    parts/000001.jsonl  the lines as files of batch lines
    input               a copy of standard input
    stack/              the state of the local stack, where there is one
    """

    def __init__(self, results: Path, *, keep: bool = False) -> None:
        self.results = results
        self.path = results.with_name(results.name + ".run")
        self.record = self.path / "run.json"
        self.order = self.path / "order.jsonl"
        self.input = self.path / "input"
        self.stack = self.path / "stack"
        self._keep = keep
        self._lock = FolderLock(self.path, "another run")

    def __enter__(self) -> RunFolder:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._keep and not self.record.exists():
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()

    def part(self, number: int) -> Path:
        """The file of batch lines with this number, from 1."""
        return self.path / "parts" / f"{number:06d}.jsonl"

    def clear(self) -> None:
        """Delete an earlier run, but keep the lock."""
        self.forget()
        for entry in self.path.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != "lock":
                entry.unlink()

    def forget(self) -> None:
        """Delete the record durably, after which the run cannot be resumed."""
        with contextlib.suppress(FileNotFoundError):
            self.record.unlink()
            sync_path(self.path)
