"""The interface of the file store: a local folder or an S3 bucket, with the same guarantees.

An object appears under its name whole or not at all, and is durable once commit() returns. Content is
streamed. All methods block. A store is thread-safe; a writer or a reader is used by one thread at a time.
"""

from __future__ import annotations

import errno
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import BinaryIO

from common.disk_space import NO_ROOM, reason
from tasks.base.errors import BadObjectName, FileStoreFull, FileStoreUnavailable

S3 = "s3://"
MAX_NAME = 512  # characters; S3 limits keys to 1,024 bytes
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"  # no "..", no leading dot: the store uses such names itself
_NAME = re.compile(rf"{_PART}(/{_PART})*")


class NewObject(ABC):
    """An object being written. As a context manager it commits at the end, and aborts on an error."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Append."""

    @abstractmethod
    def commit(self) -> None:
        """Publish the object atomically and durably, in place of an earlier one. An error leaves nothing."""

    @abstractmethod
    def abort(self) -> None:
        """Discard the object. Never raises: sweep() removes what cannot be removed now."""

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
    """Objects by name, such as files/file_ab or batches/batch_cd/parts/000001-9f3a.

    Every method, and every read from what open() gives, may raise FileStoreUnavailable; those that take a
    name raise BadObjectName.
    """

    @abstractmethod
    def open_new(self, name: str) -> NewObject:
        """Begin to write an object."""

    @abstractmethod
    def open(self, name: str) -> BinaryIO:
        """The object, buffered and seekable; raises ObjectMissing."""

    @abstractmethod
    def read_range(self, name: str, start: int, end: int) -> bytes:
        """The bytes from start to before end, fewer where the object ends; raises ObjectMissing."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Size in bytes; raises ObjectMissing."""

    @abstractmethod
    def delete(self, name: str, missing_ok: bool = False) -> None:
        """Remove an object; raises ObjectMissing unless missing_ok."""

    @abstractmethod
    def local_copy(self, name: str) -> AbstractContextManager[tuple[BinaryIO, Iterator[None]]]:
        """Context manager of a seekable local file with the object's content, and of the steps that copy it,
        which must be exhausted before the file is read; raises ObjectMissing.
        """

    @abstractmethod
    def sweep(self, older_than_s: float) -> int:
        """Remove partial objects of killed writers that are older than this; return their number."""

    def free_bytes(self) -> int | None:
        """Free space; None if it is unknown, as for a bucket."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Close connections."""

    @abstractmethod
    def list(self, prefix: str) -> list[str]:
        """The sorted names below prefix, which consists of the first parts of a name."""


@contextmanager
def translated(location: str) -> Iterator[None]:
    """Turn any failure of the file system into FileStoreUnavailable, or FileStoreFull."""
    try:
        yield
    except OSError as error:
        kind = FileStoreFull if error.errno in NO_ROOM | {errno.EFBIG} else FileStoreUnavailable
        raise kind(f"{location}: {reason(error)}") from error


def checked(name: str) -> str:
    """Return the name if it is valid; raises BadObjectName otherwise."""
    if len(name) > MAX_NAME or _NAME.fullmatch(name) is None:
        raise BadObjectName(name)
    return name
