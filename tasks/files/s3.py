"""Objects in an S3 bucket, through fsspec's s3fs.

Keys, region and endpoint come from the usual variables and files: AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...
"""

from __future__ import annotations

import datetime
import errno
import http
import io
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any, BinaryIO

import aiohttp
import s3fs  # type: ignore[import-untyped]
from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

from tasks.base.errors import FileStoreFull, FileStoreUnavailable, ObjectMissing
from tasks.files.base import S3, FileStore, NewObject, checked, translated

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PART_BYTES = 5 * 1024 * 1024  # S3's minimum; its limit of 10,000 parts allows objects of 50 GB
READ_BYTES = 1024 * 1024  # of one request; buffered by each open reader
CONNECT_S = 5.0
ANSWER_S = 20.0  # without a received byte, until the request is repeated
TRIES = 2  # by botocore for a request that failed, and by s3fs for a response that broke off
FAILURES = (OSError, BotoCoreError, ClientError, aiohttp.ClientError)


class S3Store(FileStore):
    """Connects at the first call. s3fs runs its event loop in a thread, so fork the process before that."""

    def __init__(self, url: str, answer_s: float = ANSWER_S) -> None:
        self._url = url.rstrip("/")
        self._root = self._url.removeprefix(S3)
        self._answer_s = answer_s

    @cached_property
    def _fs(self) -> Any:  # s3fs has no types
        fs = s3fs.S3FileSystem(
            skip_instance_cache=True,  # ours to close
            use_listings_cache=False,  # other processes write here too
            config_kwargs={
                "connect_timeout": CONNECT_S,
                "read_timeout": self._answer_s,
                "retries": {"total_max_attempts": TRIES, "mode": "standard"},
            },
        )
        fs.retries = TRIES
        return fs

    def open_new(self, name: str) -> NewObject:
        return _NewKey(self, self._path(name))

    def open(self, name: str) -> BinaryIO:
        return io.BufferedReader(_Key(self, name, self.size(name)), READ_BYTES)

    def read_range(self, name: str, start: int, end: int) -> bytes:
        if start >= end:
            self.size(name)
            return b""
        with self._reading(name):
            try:
                return bytes(self._fs.cat_file(self._path(name), start=start, end=end))
            except OSError as error:
                if _answer(error).get("Error", {}).get("Code") == "InvalidRange":  # beyond the end
                    return b""
                raise

    def size(self, name: str) -> int:
        with self._reading(name):
            found = self._fs.info(self._path(name))
        if found["type"] != "file":
            raise ObjectMissing(name)
        return int(found["size"])

    def delete(self, name: str, missing_ok: bool = False) -> None:
        if not missing_ok:
            self.size(name)  # S3 does not say whether there was one
        with self._translated():
            self._fs.rm_file(self._path(name))

    @contextmanager
    def local_copy(self, name: str) -> Iterator[tuple[BinaryIO, Iterator[None]]]:
        with (
            translated(f"the local copy of {name}"),
            self.open(name) as source,
            tempfile.TemporaryFile() as copy,
        ):
            yield copy, _copying(source, copy)

    def sweep(self, older_than_s: float) -> int:
        limit = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=older_than_s)
        bucket, _, prefix = f"{self._root}/".partition("/")
        listed = self.call("list_multipart_uploads", Bucket=bucket, Prefix=prefix)
        old = [upload for upload in listed.get("Uploads", ()) if upload["Initiated"] < limit]
        for upload in old:
            upload_id = upload["UploadId"]
            self.call("abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload_id)
        return len(old)

    def close(self) -> None:
        self.__dict__.pop("_fs", None)  # its finaliser ends the session

    def list(self, prefix: str) -> list[str]:
        with self._translated():
            found = self._fs.find(self._path(prefix) + "/")
        return sorted(path.removeprefix(f"{self._root}/") for path in found)

    def _path(self, name: str) -> str:
        return f"{self._root}/{checked(name)}"

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call an operation of the S3 API."""
        with self._translated():
            return dict(self._fs.call_s3(operation, **arguments))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn any failure of S3 into FileStoreUnavailable, or FileStoreFull."""
        try:
            yield
        except FAILURES as error:
            status = _answer(error).get("ResponseMetadata", {}).get("HTTPStatusCode")
            full = status == http.HTTPStatus.INSUFFICIENT_STORAGE
            kind = FileStoreFull if full else FileStoreUnavailable
            message = " ".join(str(error).split()) or type(error).__name__
            raise kind(f"the file store {self._url}: {message}") from error

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        with self._translated():
            try:
                yield
            except FileNotFoundError as error:
                if _answer(error).get("Error", {}).get("Code") == "NoSuchBucket":
                    raise
                raise ObjectMissing(name) from None


class _Key(io.RawIOBase):
    """Reads byte ranges, one request each."""

    def __init__(self, store: S3Store, name: str, size: int) -> None:
        self._store, self._name, self._size = store, name, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, "a position before the start")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        data = self._fetch(len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self._fetch(self._size)  # one request, where the inherited one makes many small ones

    def _fetch(self, most: int) -> bytes:
        end = min(self._at + most, self._size)
        if self._at >= end:
            return b""
        data = self._store.read_range(self._name, self._at, end)
        if missing := end - self._at - len(data):
            raise FileStoreUnavailable(f"the object {self._name} ended {missing} bytes early")
        self._at = end
        return data


class _NewKey(NewObject):
    """Writes a small object with one request, a larger one as a multipart upload.

    s3fs's own file holds a part in memory three times, and completes the upload when it is garbage-collected.
    """

    def __init__(self, store: S3Store, path: str) -> None:
        self._store = store
        bucket, _, key = path.partition("/")
        self._at = {"Bucket": bucket, "Key": key}
        self._waiting = bytearray()
        self._upload: dict[str, str] = {}  # the id of the multipart upload, once it is begun
        self._parts: list[dict[str, Any]] = []

    def write(self, data: bytes) -> None:
        self._waiting += data
        if len(self._waiting) >= PART_BYTES:
            self._send_part()

    def commit(self) -> None:
        try:
            if not self._upload:
                self._store.call("put_object", **self._at, Body=bytes(self._waiting))
                return
            if self._waiting:
                self._send_part()
            whole = {"Parts": self._parts}
            self._store.call("complete_multipart_upload", **self._at, **self._upload, MultipartUpload=whole)
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        self._waiting.clear()
        if self._upload:
            with suppress(FileStoreUnavailable):
                self._store.call("abort_multipart_upload", **self._at, **self._upload)

    def _send_part(self) -> None:
        if not self._upload:
            self._upload = {"UploadId": self._store.call("create_multipart_upload", **self._at)["UploadId"]}
        body, number = bytes(self._waiting), len(self._parts) + 1
        self._waiting.clear()
        sent = self._store.call("upload_part", **self._at, **self._upload, PartNumber=number, Body=body)
        self._parts.append({"PartNumber": number, "ETag": sent["ETag"]})


def _copying(source: BinaryIO, copy: IO[bytes]) -> Iterator[None]:
    while data := source.read(READ_BYTES):
        copy.write(data)
        yield
    copy.seek(0)


def _answer(error: BaseException) -> dict[str, Any]:
    """S3's response, empty for an error without one."""
    for known in (error, error.__cause__):
        if isinstance(known, ClientError):
            return dict(known.response)
    return {}
