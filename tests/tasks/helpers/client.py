"""A client of batches without a gateway, and the lines it sends."""

from __future__ import annotations

import json
from typing import Any

from tasks.batches.store import BatchStore
from tasks.files.base import FileStore
from tasks.files.manager import FileManager
from tasks.files.records import FileRecords, Purpose, object_name
from tasks.records.batch import Batch, NewBatch
from tasks.schema.openai_requests import COMPLETIONS
from tasks.store.jobs import JobStore
from tests.support.workers import wait_until

TIMEOUT_S = 60.0


class Client:
    """What the gateway does for its callers."""

    def __init__(self, store: JobStore, files: FileStore) -> None:
        self.batches, self.files, self.records = (
            BatchStore(store.db),
            files,
            FileRecords(store.db),
        )
        self.keeper = FileManager(files, self.records)

    def upload(self, lines: list[Any]) -> str:
        """lines: objects, or bytes as they stand."""
        content = b"".join(
            (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines
        )
        return self.upload_bytes(content)

    def upload_bytes(self, content: bytes) -> str:
        with self.keeper.begin() as out:
            out.write(content)
            return out.finish("x.jsonl", Purpose.BATCH).id

    def create(self, lines: list[Any], **fields: Any) -> Batch:
        return self.batches.create(NewBatch(COMPLETIONS, self.upload(lines), **fields))

    def end(self, batch: Batch, timeout_s: float = TIMEOUT_S) -> Batch:
        wait_until(lambda: self.get(batch).ended, timeout_s, report=lambda: str(self.get(batch).to_json()))
        return self.get(batch)

    def get(self, batch: Batch) -> Batch:
        return self.batches.get(batch.id)

    def read(self, file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        with self.files.open(object_name(file_id)) as content:
            return [json.loads(line) for line in content]


def line(number: int, prompt: str = "hello", **body: Any) -> dict[str, Any]:
    custom_id = f"id-{number}"
    return {"custom_id": custom_id, "method": "POST", "url": COMPLETIONS, "body": {"prompt": prompt, **body}}


def ids(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["custom_id"] for entry in entries]


def answered_once(client: Client, batch: Batch, total: int) -> None:
    """Output and error files hold each line once, in the order of the input."""
    good, bad = client.read(batch.output_file_id), client.read(batch.error_file_id)
    never_sent = batch.total - batch.completed - batch.failed
    assert (len(good), len(bad)) == (batch.completed, batch.failed + never_sent)
    for entries in (good, bad):
        numbers = [int(custom_id.removeprefix("id-")) for custom_id in ids(entries)]
        assert numbers == sorted(set(numbers))
    assert {*ids(good), *ids(bad)} == {f"id-{n}" for n in range(total)}
