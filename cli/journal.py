"""The durable memory of a bulk run: RESULTS.run/journal.jsonl, and how it becomes RESULTS."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import uuid
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from cli.errors import BadInput, CliError, writing
from cli.lock import FolderLock

VERSION = 1
ABSENT = -1


@dataclass(frozen=True)
class RunIdentity:
    """What makes two runs the same one: the input's SHA-256 and the options that shape its results."""

    input_sha256: str
    options: Mapping[str, Any]


class RunFolder:
    """RESULTS.run, locked. Holds the journal, and the input where that came from a pipe."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self.path = results.with_name(results.name + ".run")
        self.journal = self.path / "journal.jsonl"
        self._lock = FolderLock(self.path, "another run")

    def __enter__(self) -> RunFolder:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        if self.path.exists() and not self.journal.exists():
            self.remove()  # nothing was begun
        self._lock.release()

    def remove(self) -> None:
        """The journal goes first: a folder without one is no run."""
        with contextlib.suppress(FileNotFoundError):
            self.journal.unlink()
        shutil.rmtree(self.path, ignore_errors=True)

    def clear(self) -> None:
        """Forget an earlier run, and keep the lock."""
        with contextlib.suppress(FileNotFoundError):
            self.journal.unlink()
        for entry in self.path.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != "lock":
                entry.unlink()


class Journal:
    """Results by index, appended as they come. Holds offsets in memory, never the results.

    A write that fails raises CliError, and is the end: what is not on the disk is done again by the next run.
    """

    def __init__(self, path: Path, total: int, identity: RunIdentity) -> None:
        self._path = path
        with writing(path):
            self._file: BinaryIO = path.open("a+b")
        self._offsets = array("q", [ABSENT]) * total
        self.done = 0
        self.failed = 0
        self._dirty = False
        try:
            self.run_id = self._load(path, identity) or self._begin(identity)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with writing(self._path):
            try:
                self.sync()
            finally:
                self._file.close()

    def has(self, index: int) -> bool:
        return self._offsets[index] != ABSENT

    def append(self, index: int, result: Mapping[str, Any], *, failed: bool) -> None:
        """Record an end; the first one of an index stays. Durable after the next sync()."""
        if self.has(index):
            return
        self._note(index, self._file.tell(), failed)
        self._dirty = True
        with writing(self._path):
            self._file.write(_dump({"index": index, "failed": failed, "result": result}))

    def sync(self) -> None:
        """Bring what was appended to the disk."""
        if self._dirty:
            with writing(self._path):
                self._file.flush()
                os.fsync(self._file.fileno())
            self._dirty = False

    def ends(self) -> Iterator[dict[str, Any]]:
        """The results in input order; raises CliError if one is missing."""
        self.sync()
        with self._path.open("rb") as file:
            for index, offset in enumerate(self._offsets):
                if offset == ABSENT:
                    raise CliError(f"request {index + 1} has no result yet")
                file.seek(offset)
                result: dict[str, Any] = json.loads(file.readline())["result"]
                yield result

    def _note(self, index: int, offset: int, failed: bool) -> None:
        self._offsets[index] = offset
        self.done += 1
        self.failed += failed

    def _begin(self, identity: RunIdentity) -> str:
        run_id = f"run_{uuid.uuid4().hex[:12]}"
        header = {
            "medusaq_run": VERSION,
            "run": run_id,
            "input_sha256": identity.input_sha256,
            "options": identity.options,
            "created_at": time.time(),
        }
        self._dirty = True
        with writing(self._path):
            self._file.truncate(0)
            self._file.write(_dump(header))
            self.sync()
            sync_folder(self._path.parent)
        return run_id

    def _load(self, path: Path, identity: RunIdentity) -> str | None:
        """Index an existing journal and cut off a torn end; returns its run id, None if there is none."""
        self._file.seek(0)
        header = self._file.readline()
        if not header.endswith(b"\n"):
            return None
        run_id = _check_header(path, header, identity)
        end = self._file.tell()
        while (line := self._file.readline()).endswith(b"\n"):
            try:
                entry = json.loads(line)
                index, failed = int(entry["index"]), bool(entry["failed"])
            except (ValueError, KeyError, TypeError):
                break  # written by a machine that lost power: what follows is done again
            if 0 <= index < len(self._offsets) and not self.has(index):
                self._note(index, end, failed)
            end += len(line)
        self._file.truncate(end)
        self._file.seek(end)
        return run_id


def _check_header(path: Path, line: bytes, identity: RunIdentity) -> str:
    try:
        header = json.loads(line)
        version, run_id = header["medusaq_run"], str(header["run"])
        sha256, options = header["input_sha256"], dict(header["options"])
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{path} is not the journal of a run; start over with --fresh") from None
    if version != VERSION:
        raise BadInput(f"{path} was written by another version; start over with --fresh")
    if sha256 != identity.input_sha256:
        raise BadInput(f"the input has changed since {path.parent} was begun; start over with --fresh")
    changed = sorted(
        name for name in {*options, *identity.options} if options.get(name) != identity.options.get(name)
    )
    if changed:
        was = ", ".join(f"{name} was {json.dumps(options.get(name))}" for name in changed)
        raise BadInput(f"{path.parent} was begun with other options ({was}); repeat those, or use --fresh")
    return run_id


def write_results(journal: Journal, folder: RunFolder, each: Callable[[dict[str, Any]], None]) -> None:
    """Write RESULTS in input order, whole or not at all; each is called with every line."""
    part = folder.path / "results.part"
    with writing(folder.results):
        with part.open("wb") as file:
            for result in journal.ends():
                file.write(_dump(result))
                each(result)
            file.flush()
            os.fsync(file.fileno())
        part.replace(folder.results)
        sync_folder(folder.results.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and new files in the folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _dump(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace") + b"\n"  # half a surrogate pair, quoted from a bad line, becomes "?"
