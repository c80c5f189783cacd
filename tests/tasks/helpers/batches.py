"""Short ways to say what the tests of batches in Redis say often."""

from __future__ import annotations

from tasks.batches.store import BatchStore
from tasks.records.batch import Batch, NewBatch
from tasks.records.claim import Claim
from tasks.records.packed_line import Line
from tasks.schema.openai_requests import CHAT
from tasks.store.jobs import JobStore, new_claim_id

ROOM = {"": 64}


def lines(first: int, count: int) -> list[Line]:
    request = '{"prompt":"p","max_tokens":1,"seed":0}'
    return [Line(n, f"id-{n}", "", request, 1) for n in range(first, first + count)]


def made(batches: BatchStore, **fields: object) -> Batch:
    return batches.create(NewBatch(endpoint=CHAT, input_file_id="file_x", **fields))  # type: ignore[arg-type]


def claimed(store: JobStore, job_id: str) -> Claim:
    claim = store.claim(job_id, "w", new_claim_id())
    assert isinstance(claim, Claim)
    return claim
