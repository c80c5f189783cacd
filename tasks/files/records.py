"""The records of files in Redis. A record exists only for a complete object.

Every method raises StoreUnavailable when Redis does not answer in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tasks.base.errors import FileInUse, FileNotFound, FileStoreUnavailable, IdempotencyConflict
from tasks.records import ids
from tasks.records.api_key import DEFAULT_MAX_FILES
from tasks.store.database import Database
from tasks.store.script_answers import IDEMPOTENCY_TTL_MS, files_full
from tasks.store.scripts import answering, pairs

WRITER_LEASE_MS = 3_600_000  # a writer that does not renew its lease for an hour counts as dead
AGAIN_MS = 60_000  # until an unconfirmed removal is tried again, or a file in use is checked again
REMOVE_LIMIT = 100  # objects removed at a time: few enough to be removed well within AGAIN_MS


class Purpose(StrEnum):
    """What a file is for, by the names of the OpenAI API."""

    BATCH = "batch"
    BATCH_OUTPUT = "batch_output"


def new_file_id() -> str:
    """A fresh random file id."""
    return ids.FILE.new()


@dataclass(frozen=True, slots=True)
class NewFile:
    """The fields that an upload sets. body_hash detects a different body under the same idempotency key."""

    id: str
    bytes: int
    filename: str
    purpose: Purpose
    expires_after_s: int | None = None
    idempotency_key: str | None = None
    body_hash: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file. Times are Unix seconds; expires_at None is never."""

    id: str
    bytes: int
    created_at: float
    expires_at: float | None
    filename: str
    purpose: Purpose

    @property
    def object_name(self) -> str:
        return object_name(self.id)

    @classmethod
    def from_hash(cls, fields: Mapping[str, str]) -> FileRecord:
        return cls(
            id=fields["id"],
            bytes=int(fields["bytes"]),
            created_at=int(fields["created_at"]) / 1000,
            expires_at=int(fields["expires_at"]) / 1000 if fields["expires_at"] else None,
            filename=fields["filename"],
            purpose=Purpose(fields["purpose"]),
        )

    def to_json(self) -> dict[str, Any]:
        """The record as HTTP shows it, times in whole seconds."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": int(self.created_at),
            "expires_at": None if self.expires_at is None else int(self.expires_at),
            "filename": self.filename,
            "purpose": self.purpose.value,
            "status": "processed",
        }


@dataclass(frozen=True, slots=True)
class FilePage:
    files: tuple[FileRecord, ...]
    has_more: bool


class FileRecords:
    """Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._settings = database.settings
        self._redis = database.redis
        self._prefix = database.prefix
        self._scripts = database.scripts

    def begin(self, file_id: str, owner: str = "", most_bytes: int = 0) -> None:
        """Register an object: it is removed unless create() or renew() follows within WRITER_LEASE_MS.

        owner: whose limits must allow a file of most_bytes, which is reserved meanwhile; "" skips the check.
        Raises FilesLimit, and FileStoreUnavailable while an earlier object of this id is being removed.
        """
        arguments = {
            "id": file_id,
            "lease_ms": WRITER_LEASE_MS,
            "owner": owner,
            "most_bytes": most_bytes,
            "max_files": DEFAULT_MAX_FILES,
            "max_files_bytes": self._settings.max_files_bytes,
        }
        answer, *values = self._scripts.run("files/begin", arguments)
        if answer == "removing":
            raise FileStoreUnavailable(f"the earlier object of {file_id} is still being removed")
        if answer == "files":
            raise files_full(values[0])

    def renew(self, file_id: str) -> bool:
        """Renew the writer's lease; False if it has expired."""
        return bool(self._scripts.run("files/renew", file_id, WRITER_LEASE_MS))

    def create(self, new: NewFile) -> FileRecord:
        """Create the record of a complete object, or return the earlier file of the idempotency key.

        Raises IdempotencyConflict, and FileStoreUnavailable if the writer's lease has expired. Safe to repeat
        with the same NewFile.
        """
        arguments = {
            "id": new.id,
            "bytes": new.bytes,
            "filename": new.filename,
            "purpose": new.purpose,
            "expires_in_ms": None if new.expires_after_s is None else new.expires_after_s * 1000,
            "idempotency_key": new.idempotency_key or "",
            "body_hash": new.body_hash,
            "idempotency_ttl_ms": IDEMPOTENCY_TTL_MS,
            "owner": new.owner,
        }
        answer = self._scripts.run("files/create", arguments)
        if answer[0] == "conflict":
            raise IdempotencyConflict(answer[1])
        if answer[0] == "lost":
            raise given_up(new.id)
        return _record(answer[1])

    def get(self, file_id: str, owner: str | None = None) -> FileRecord:
        """The record; raises FileNotFound, also for a file of another owner."""
        with answering():
            fields = self._redis.hgetall(f"{self._prefix}file:{file_id}")
        if not fields or owner not in (None, fields.get("owner")):
            raise FileNotFound(file_id)
        return FileRecord.from_hash(fields)

    def page(
        self,
        limit: int,
        after: str | None = None,
        purpose: Purpose | None = None,
        oldest_first: bool = False,
        owner: str | None = None,
    ) -> FilePage:
        """A page that begins after the file `after`; raises FileNotFound if that is unknown."""
        order = "asc" if oldest_first else "desc"
        answer = self._scripts.run("files/page", purpose, after, limit, order, owner)
        if answer[0] == "unknown":
            raise FileNotFound(after or "")
        return FilePage(tuple(_record(flat) for flat in answer[2:]), has_more=answer[1] == 1)

    def drop(self, file_id: str, owner: str | None = None) -> None:
        """Delete the record; the caller removes the object. Raises FileNotFound or FileInUse."""
        answer = self._scripts.run("files/delete", file_id, AGAIN_MS, owner)
        if answer == "unknown":
            raise FileNotFound(file_id)
        if answer == "in_use":
            raise FileInUse(file_id)

    def due(self) -> list[str]:
        """Delete the records of expired files; return the ids of up to REMOVE_LIMIT objects to remove now."""
        return list(self._scripts.run("files/due", REMOVE_LIMIT, AGAIN_MS))

    def gone(self, file_id: str) -> None:
        """Confirm that the object is removed, or was never written."""
        self._scripts.run("files/gone", file_id)


def given_up(file_id: str) -> FileStoreUnavailable:
    """The error of a writer whose lease has expired."""
    return FileStoreUnavailable(f"{file_id} was discarded: its writer did not renew the lease in time")


def object_name(file_id: str) -> str:
    """The name of the file's object in the store."""
    return f"files/{file_id}"


def _record(flat: Sequence[str]) -> FileRecord:
    return FileRecord.from_hash(pairs(flat))
