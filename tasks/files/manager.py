"""Keeps objects and their records consistent: every record has its object, and no object stays without one.

Redis is written first. Before an object is begun, its id is put on a list of objects to remove, and the
script that creates the record takes it off; the script that deletes a record puts the id on the list again. A
process that is killed at any point thus leaves at most an object that drop_expired() removes later.
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

RENEW_S = 60.0  # between renewals of a writer's lease, which lasts an hour
SWEEP_S = 3600.0  # between searches for partial objects of killed writers, each a request to S3
SWEEP_AGE_S = 24 * 3600.0  # no upload takes that long


class FileManager:
    """Thread-safe. Every method raises StoreUnavailable when Redis does not answer in time."""

    def __init__(self, objects: FileStore, records: FileRecords) -> None:
        self.objects = objects
        self.records = records
        self._swept_at = float("-inf")

    def begin(self, file_id: str | None = None, *, owner: str = "", most_bytes: int = 0) -> Upload:
        """Begin a new file. A caller that gives the id must write the same content each time.

        owner: whose limits must allow most_bytes more. Raises FilesLimit and FileStoreUnavailable.
        """
        return Upload(self, file_id or new_file_id(), owner, most_bytes)

    def delete(self, file_id: str, owner: str | None = None) -> None:
        """Raises FileNotFound or FileInUse. drop_expired() removes an object that cannot be removed now."""
        self.records.drop(file_id, owner)
        try:
            self.remove_object(file_id)
        except (FileStoreUnavailable, StoreUnavailable) as error:
            log.warning("the object of %s is removed later: %s", file_id, error)

    def drop_expired(self) -> int:
        """Remove expired files and objects without a record; return the number of objects.

        A failed removal is tried again after a minute. Raises FileStoreUnavailable.
        """
        removed = 0
        while ids := self.records.due():
            random.shuffle(ids)  # so that an object that cannot be removed does not always block the others
            for file_id in ids:
                self.remove_object(file_id)
            removed += len(ids)
        if time.monotonic() - self._swept_at > SWEEP_S:
            self.objects.sweep(SWEEP_AGE_S)
            self._swept_at = time.monotonic()
        return removed

    def remove_object(self, file_id: str) -> None:
        """Remove the object of a file without a record."""
        self.objects.delete(object_name(file_id), missing_ok=True)
        self.records.gone(file_id)


class Upload:
    """A file being written, by one thread at a time. As a context manager it aborts unless finished."""

    def __init__(self, manager: FileManager, file_id: str, owner: str, most_bytes: int) -> None:
        self.id = file_id
        self.bytes = 0
        self._manager = manager
        self._hash = hashlib.sha256()
        self._finished = False
        self._renewed_at = time.monotonic()
        manager.records.begin(file_id, owner, most_bytes)
        try:
            self._object = manager.objects.open_new(object_name(file_id))
        except FileStoreUnavailable:
            self._forget()
            raise

    def write(self, data: bytes) -> None:
        """Append. Raises FileStoreUnavailable."""
        self._object.write(data)
        self._hash.update(data)
        self.bytes += len(data)
        if time.monotonic() - self._renewed_at > RENEW_S:
            with suppress(StoreUnavailable):  # finish() checks the lease
                self._manager.records.renew(self.id)
            self._renewed_at = time.monotonic()

    def finish(
        self,
        filename: str,
        purpose: Purpose,
        expires_after_s: int | None = None,
        idempotency_key: str | None = None,
        owner: str = "",
    ) -> FileRecord:
        """Commit the file. If the idempotency key was used before, discard it and return the earlier one.

        Of concurrent uploads with one key the first to call this wins. Raises IdempotencyConflict and
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
        if not self._manager.records.renew(self.id):  # commit only while the id is on the list
            raise given_up(self.id)
        self._object.commit()
        self._finished = True
        try:
            record = self._manager.records.create(new)
        except (IdempotencyConflict, FileStoreUnavailable):
            self._throw_away()
            raise
        if record.id != self.id:
            self._throw_away()
        return record

    def abort(self) -> None:
        """Discard the file. Never raises."""
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
        with suppress(FileStoreUnavailable, StoreUnavailable):  # the object is removed when the lease expires
            self._manager.remove_object(self.id)

    def _forget(self) -> None:
        with suppress(StoreUnavailable):  # the lease expires by itself
            self._manager.records.gone(self.id)
