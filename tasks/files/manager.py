"""Objects and their records, kept in step: no record without its object, no object for ever without a record.

Redis is told first, each time. Before an object is begun its id goes on a list of what is to be removed, and
the script that creates the record takes it off again; the script that drops a record puts the id on the list.
So a process that is killed at any point leaves at most an object that drop_expired() removes later.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import time
from contextlib import suppress
from types import TracebackType

from tasks.base.errors import FileStoreUnavailable, IdempotencyConflict, StoreUnavailable
from tasks.files.base import FileStore
from tasks.files.records import (
    FileRecord,
    FileRecords,
    NewFile,
    Purpose,
    given_up,
    new_file_id,
    object_name,
)

log = logging.getLogger(__name__)

RENEW_S = 60.0  # of a writer's lease of an hour
SWEEP_S = 3600.0  # between looks for what killed writers left, which costs S3 a request
SWEEP_AGE_S = 24 * 3600.0  # no upload takes that long


class FileManager:
    """Thread-safe. Every method raises StoreUnavailable when Redis does not answer in time."""

    def __init__(self, objects: FileStore, records: FileRecords) -> None:
        self.objects = objects
        self.records = records
        self._swept_at = float("-inf")

    def begin(self, file_id: str | None = None, *, owner: str = "", most_bytes: int = 0) -> Upload:
        """A new file; who names it must give the same content each time.

        owner: who must have room for most_bytes. Raises FilesLimit and FileStoreUnavailable.
        """
        return Upload(self, file_id or new_file_id(), owner, most_bytes)

    def delete(self, file_id: str, owner: str | None = None) -> None:
        """Raises FileNotFound or FileInUse. What the store fails to remove now, drop_expired() will."""
        self.records.drop(file_id, owner)
        try:
            self.remove_object(file_id)
        except (FileStoreUnavailable, StoreUnavailable) as error:
            log.warning("the object of %s is removed later: %s", file_id, error)

    def drop_expired(self) -> int:
        """Remove what is due: files that expired, and objects without a record. The number of objects.

        One that cannot be removed comes again after a minute. Raises FileStoreUnavailable.
        """
        removed = 0
        while ids := self.records.due():
            random.shuffle(ids)  # so that one which can never be removed is not always before the others
            for file_id in ids:
                self.remove_object(file_id)
            removed += len(ids)
        if time.monotonic() - self._swept_at > SWEEP_S:
            self.objects.sweep(SWEEP_AGE_S)
            self._swept_at = time.monotonic()
        return removed

    def remove_object(self, file_id: str) -> None:
        """Of a file that has no record (any more)."""
        self.objects.delete(object_name(file_id), missing_ok=True)
        self.records.gone(file_id)


class Upload:
    """A file being written, by one thread at a time. As a context it is aborted unless finished."""

    def __init__(self, keeper: FileManager, file_id: str, owner: str, most_bytes: int) -> None:
        self.id = file_id
        self.bytes = 0
        self._keeper = keeper
        self._hash = hashlib.sha256()
        self._finished = False
        self._renewed_at = time.monotonic()
        keeper.records.begin(file_id, owner, most_bytes)
        try:
            self._object = keeper.objects.open_new(object_name(file_id))
        except FileStoreUnavailable:
            self._forget()
            raise

    def write(self, data: bytes) -> None:
        """Append. Raises FileStoreUnavailable."""
        self._object.write(data)
        self._hash.update(data)
        self.bytes += len(data)
        if time.monotonic() - self._renewed_at > RENEW_S:
            with suppress(StoreUnavailable):  # what counts is that it is there at the end
                self._keeper.records.renew(self.id)
            self._renewed_at = time.monotonic()

    def finish(
        self,
        filename: str,
        purpose: Purpose,
        expires_after_s: int | None = None,
        idempotency_key: str | None = None,
        owner: str = "",
    ) -> FileRecord:
        """Make the file exist; with a key that was used before, throw it away and return the earlier one.

        Of uploads with one key at the same time the first to get here wins. Raises IdempotencyConflict and
        FileStoreUnavailable. After a StoreUnavailable the file may exist or not.
        """
        body = [filename, purpose, expires_after_s, self._hash.hexdigest()]
        new = NewFile(
            id=self.id,
            bytes=self.bytes,
            filename=filename,
            purpose=purpose,
            expires_after_s=expires_after_s,
            idempotency_key=idempotency_key,
            body_hash=hashlib.sha256(json.dumps(body).encode()).hexdigest(),
            owner=owner,
        )
        if not self._keeper.records.renew(self.id):  # what is committed now must still be on the list
            raise given_up(self.id)
        self._object.commit()
        self._finished = True
        try:
            record = self._keeper.records.create(new)
        except (IdempotencyConflict, FileStoreUnavailable):
            self._throw_away()
            raise
        if record.id != self.id:
            self._throw_away()
        return record

    def abort(self) -> None:
        """Leave nothing behind. Never raises."""
        if not self._finished:
            self._finished = True
            self._object.abort()
            self._forget()

    def __enter__(self) -> Upload:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _throw_away(self) -> None:
        with suppress(FileStoreUnavailable, StoreUnavailable):  # the lease runs out by itself
            self._keeper.remove_object(self.id)

    def _forget(self) -> None:
        with suppress(StoreUnavailable):  # the lease runs out by itself
            self._keeper.records.gone(self.id)
