"""The file store: a folder, or a bucket behind the S3 protocol, with the same promises.

An object appears whole or not at all, under its name, and lasts once its writer has said so. Everything is
streamed. All of it blocks, and may be used from any thread; a writer or a reader from one at a time.
"""

from __future__ import annotations

import errno
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import BinaryIO

from tasks.base.errors import BadObjectName, FileStoreFull, FileStoreUnavailable

S3 = "s3://"
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # the disk, the user's quota, the largest file allowed
MAX_NAME = 512  # characters; a key of S3 ends at 1,024 bytes
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"  # no "..", and nothing hidden: those names are the store's own
_NAME = re.compile(rf"{_PART}(/{_PART})*")


class NewObject(ABC):
    """An object being written. As a context it is committed at the end, and aborted on an error."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Append."""

    @abstractmethod
    def commit(self) -> None:
        """Make it appear, whole; what stood under the name is replaced. On an error nothing is left."""

    @abstractmethod
    def abort(self) -> None:
        """Leave nothing behind. Never raises: what cannot be removed now, sweep() removes."""

    def __enter__(self) -> NewObject:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.abort()


class FileStore(ABC):
    """Objects by name, such as files/file_ab or batches/batch_cd/parts/000001.

    Every method, and every read from what open() gives, may raise FileStoreUnavailable; those that take a
    name raise BadObjectName.
    """

    @abstractmethod
    def open_new(self, name: str) -> NewObject:
        """Begin an object."""

    @abstractmethod
    def open(self, name: str) -> BinaryIO:
        """The object, buffered and seekable; raises ObjectMissing."""

    @abstractmethod
    def read_range(self, name: str, start: int, end: int) -> bytes:
        """The bytes from start to before end, fewer where the object ends; raises ObjectMissing."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Bytes; raises ObjectMissing."""

    @abstractmethod
    def delete(self, name: str, missing_ok: bool = False) -> None:
        """Remove it; raises ObjectMissing unless missing_ok."""

    @abstractmethod
    def local_copy(self, name: str) -> AbstractContextManager[tuple[BinaryIO, Iterator[None]]]:
        """The object as a seekable local file, for as long as the context, and the steps that fill it, which
        are to be taken first; raises ObjectMissing.
        """

    @abstractmethod
    def sweep(self, older_than_s: float) -> int:
        """Remove what writers left that were killed this long ago, and return how much that was."""

    def free_bytes(self) -> int | None:
        """Room that is left; None where that is not known, as in a bucket."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Let go of connections."""

    @abstractmethod
    def list(self, prefix: str) -> list[str]:
        """The names below prefix, a name without its last parts, in order."""


@contextmanager
def translated(location: str) -> Iterator[None]:
    """Turn any failure of the file system into FileStoreUnavailable, or FileStoreFull."""
    try:
        yield
    except OSError as error:
        kind = FileStoreFull if error.errno in FULL else FileStoreUnavailable
        raise kind(f"{location}: {error.strerror}") from error


def checked(name: str) -> str:
    """The name; raises BadObjectName."""
    if len(name) > MAX_NAME or _NAME.fullmatch(name) is None:
        raise BadObjectName(name)
    return name
