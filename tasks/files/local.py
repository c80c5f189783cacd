"""Objects as files in a folder. They are written to temporary files, and renamed once they are synced."""

from __future__ import annotations

import io
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from common.atomic_write import sync_file, sync_path
from tasks.base.errors import FileStoreUnavailable, ObjectMissing
from tasks.files.base import FileStore, NewObject, checked, translated

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PARTIAL = ".partial"  # in the same folder: a file can only be renamed within one file system
WRITE_BYTES = 256 * 1024  # buffered before each write, for callers that append line by line
READ_BYTES = 256 * 1024
NO_SUCH = (FileNotFoundError, IsADirectoryError, NotADirectoryError)  # folders are no objects


class LocalStore(FileStore):
    """The first write creates the folder; a delete removes the folders that it leaves empty."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def open_new(self, name: str) -> NewObject:
        return _NewFile(self._root, self._path(name))

    def open(self, name: str) -> BinaryIO:
        with self._reading(name):
            return io.BufferedReader(_File(self._root, self._path(name)), READ_BYTES)

    def read_range(self, name: str, start: int, end: int) -> bytes:
        with self.open(name) as file:
            file.seek(start)
            return file.read(max(0, end - start))

    def size(self, name: str) -> int:
        with self._reading(name):
            found = self._path(name).stat()
        if not stat.S_ISREG(found.st_mode):
            raise ObjectMissing(name)
        return found.st_size

    def delete(self, name: str, missing_ok: bool = False) -> None:
        path = self._path(name)
        try:
            with self._reading(name):
                path.unlink()
        except ObjectMissing:
            if not missing_ok:
                raise
            return
        with _translated(self._root), suppress(FileNotFoundError):  # another delete removed the empty folder
            sync_path(path.parent)
        for folder in path.parents:
            if folder == self._root:
                return
            try:
                folder.rmdir()
            except OSError:  # not empty
                return

    @contextmanager
    def local_copy(self, name: str) -> Iterator[tuple[BinaryIO, Iterator[None]]]:
        with self.open(name) as file:
            yield file, iter(())

    def sweep(self, older_than_s: float) -> int:
        removed = 0
        with _translated(self._root), suppress(FileNotFoundError):
            for path in (self._root / PARTIAL).iterdir():
                with suppress(FileNotFoundError):  # its writer is alive, and has just renamed or removed it
                    if path.stat().st_mtime < time.time() - older_than_s:
                        path.unlink()
                        removed += 1
        return removed

    def free_bytes(self) -> int | None:
        with _translated(self._root):
            made = next(folder for folder in (self._root, *self._root.parents) if folder.exists())
            return shutil.disk_usage(made).free

    def close(self) -> None:
        """Does nothing: there are no connections."""

    def list(self, prefix: str) -> list[str]:
        with _translated(self._root):
            return sorted(
                (Path(folder) / name).relative_to(self._root).as_posix()
                for folder, _, names in os.walk(self._path(prefix), onerror=_unless_gone)
                for name in names
            )

    def _path(self, name: str) -> Path:
        return self._root / checked(name)

    def _missing(self, name: str) -> Exception:
        if self._root.is_dir():
            return ObjectMissing(name)
        return FileStoreUnavailable(f"the file store {self._root}: there is no such folder")

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        with _translated(self._root):
            try:
                yield
            except NO_SUCH:
                raise self._missing(name) from None


class _File(io.FileIO):
    """A file that raises the errors of the store."""

    def __init__(self, root: Path, path: Path) -> None:
        self._root = root
        super().__init__(path, "rb")

    def readinto(self, buffer: WriteableBuffer) -> int:
        with _translated(self._root):
            return super().readinto(buffer)

    def readall(self) -> bytes:
        with _translated(self._root):
            return super().readall()


class _NewFile(NewObject):
    def __init__(self, root: Path, target: Path) -> None:
        self._root, self._target = root, target
        self._partial = root / PARTIAL / uuid.uuid4().hex
        with _translated(root):
            _make_folders(self._partial.parent)
            self._file = self._partial.open("xb", WRITE_BYTES)

    def write(self, data: bytes) -> None:
        with _translated(self._root):
            self._file.write(data)

    def commit(self) -> None:
        try:
            with _translated(self._root):
                sync_file(self._file)
                self._file.close()
                self._move()
                sync_path(self._target.parent)
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._partial.unlink()

    def _move(self) -> None:
        while True:
            try:
                _make_folders(self._target.parent)
                self._partial.replace(self._target)
                return
            except FileNotFoundError:  # a delete in another process removed the folder, which was empty
                if not self._partial.exists():
                    raise


def _translated(root: Path) -> AbstractContextManager[None]:
    return translated(f"the file store {root}")


def _make_folders(folder: Path) -> None:
    """Create a folder and its parents durably."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        with suppress(FileExistsError):  # exist_ok would check it again, and fail if it was removed meanwhile
            new.mkdir()
        sync_path(new.parent)


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
