"""Short ways to say what the tests of files say often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tasks.files.base import FileStore
from tasks.files.manager import FileManager
from tasks.files.records import FileRecord, FileRecords, Purpose
from tasks.store.jobs import JobStore


def put(store: FileStore, name: str, data: bytes = b"data", step: int = 1024 * 1024) -> None:
    with store.open_new(name) as new:
        for at in range(0, len(data), step):
            new.write(data[at : at + step])


def get(store: FileStore, name: str) -> bytes:
    with store.open(name) as file:
        return file.read()


@dataclass
class Kept:
    """A keeper, and short ways to use it."""

    keeper: FileManager
    store: JobStore

    @property
    def records(self) -> FileRecords:
        return self.keeper.records

    def add(self, data: bytes = b"data", **fields: Any) -> FileRecord:
        with self.keeper.begin() as upload:
            upload.write(data)
            return upload.finish(fields.pop("filename", "a.jsonl"), Purpose.BATCH, **fields)

    def objects(self) -> list[str]:
        return self.keeper.objects.list("files")

    def held(self) -> set[str]:
        """What Redis holds of files, without the counter."""
        names = {
            key.removeprefix(self.store.db.prefix)
            for key in self.store.db.redis.keys(f"{self.store.db.prefix}*")
        }
        return names - {"file_seq"}
