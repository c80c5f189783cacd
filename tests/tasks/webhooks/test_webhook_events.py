"""What is put into the outbox of webhooks with the end of a job or a batch, and what not."""

from __future__ import annotations

import json
import time
from typing import get_args

import pytest

from tasks.base.settings import Settings
from tasks.records.batch import NewBatch
from tasks.records.job import Status
from tasks.records.webhook import Webhook
from tasks.schema.openai_requests import CHAT
from tasks.schema.webhook_request import BatchEvent, JobEvent
from tasks.store.jobs import JobStore
from tasks.webhooks.store import DeliveryStore
from tests.tasks.helpers.outbox import ALL, EACH, MOST, URL, end, keys, take
from tests.tasks.helpers.records import WORKER, batch_store, claimed, queued


def test_work_without_a_webhook_leaves_nothing(store: JobStore, outbox: DeliveryStore) -> None:
    job_id = end(store, webhook=None)
    assert keys(store) == set()
    assert not store.db.redis.hexists(f"{store.db.prefix}job:{job_id}", "webhook")
    assert outbox.take(MOST, 10 * MOST, EACH, {}) == ([], None)


def ended_as(store: JobStore, status: Status, webhook: Webhook) -> str:
    soon = time.time() + 0.01 if status is Status.EXPIRED else None
    job_id = queued(store, webhook=webhook, owner="me", deadline=soon)
    if status is Status.CANCELLED:
        store.cancel(job_id)
    elif status is Status.EXPIRED:
        time.sleep(0.02)
        store.claim(job_id, WORKER, "t")
    else:
        failure = {"code": "boom", "message": "m", "param": None}
        error = failure if status is Status.FAILED else None
        assert store.finish(job_id, claimed(store, job_id).fencing_token, status, None, error)
    assert store.get(job_id).status is status
    return job_id


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.EXPIRED])
def test_every_end_is_told_once_to_those_who_want_it(
    store: JobStore, outbox: DeliveryStore, status: Status
) -> None:
    others = tuple(name for name in get_args(JobEvent) if name != f"job.{status}")
    ended_as(store, status, Webhook(URL, others))
    assert keys(store) == set()
    job_id = ended_as(store, status, Webhook(URL, (f"job.{status}",)))
    store.cancel(job_id)
    [due] = take(outbox)
    event = json.loads(due.body)
    assert due.id == event["id"] == f"evt_{job_id.removeprefix('job_')}"
    assert (event["object"], event["type"]) == ("event", f"job.{status}")
    assert event["created_at"] == pytest.approx(time.time(), abs=2)
    error = {"code": "boom", "message": "m", "param": None} if status is Status.FAILED else None
    expected = {"id": job_id, "status": status, "metadata": {}, "error": error, "result": None}
    assert event["data"] == expected


def test_a_poison_prompt_is_told_too(store: JobStore, outbox: DeliveryStore, settings: Settings) -> None:
    job_id = queued(store, webhook=ALL, owner="me")
    for attempt in range(settings.max_attempts + 1):
        store.db.redis.hset(f"{store.db.prefix}job:{job_id}", "lease_until", 1)
        store.claim(job_id, WORKER, str(attempt))
    [due] = take(outbox)
    event = json.loads(due.body)
    assert (event["type"], event["data"]["error"]["code"]) == ("job.failed", "worker_lost")


@pytest.mark.parametrize("text", ["short", "long " * 4000, "\u2028😀é" * 1500])
def test_what_fits_is_told(store: JobStore, outbox: DeliveryStore, text: str) -> None:
    metadata = {"k": "ü😀"}
    job_id = queued(store, webhook=ALL, metadata=metadata)
    result = {"text": text, "finish_reason": "stop"}
    assert store.finish(job_id, claimed(store, job_id).fencing_token, Status.SUCCEEDED, result)
    [due] = take(outbox)
    assert len(due.body) < 20_000
    data = json.loads(due.body)["data"]
    assert data["metadata"] == metadata
    assert data.get("result", "left out") == (result if len(text) < 10_000 else "left out")


def test_metadata_may_be_too_long(store: JobStore, outbox: DeliveryStore) -> None:
    end(store, metadata={f"{n}": "😀" * 512 for n in range(16)})
    [due] = take(outbox)
    assert len(due.body) < 20_000
    data = json.loads(due.body)["data"]
    assert sorted(data) == ["error", "id", "result", "status"]


def test_a_batch_is_told_of_with_its_end(store: JobStore, outbox: DeliveryStore) -> None:
    batches = batch_store(store)
    webhook = Webhook(URL, get_args(BatchEvent))
    made = batches.create(
        NewBatch(endpoint=CHAT, input_file_id="file_x", owner="me", metadata={"a": "ü"}, webhook=webhook)
    )
    assert batches.get(made.id).webhook == webhook
    assert made.to_json()["webhook"] == {"url": URL, "events": list(get_args(BatchEvent))}
    assert batches.lead("token", {"": 1}) is not None
    batches.finish("token", made.id, "completed", output_file_id="file_o")
    batches.finish("token", made.id, "completed", output_file_id="file_o")
    [due] = take(outbox)
    event = json.loads(due.body)
    assert event["type"] == "batch.completed"
    assert event["data"] == {
        "id": made.id,
        "status": "completed",
        "metadata": {"a": "ü"},
        "request_counts": {"total": 0, "completed": 0, "failed": 0, "cancelled": 0, "expired": 0},
        "output_file_id": "file_o",
        "error_file_id": None,
        "errors": None,
    }
    [delivery] = outbox.of_object(made.id, "me")
    assert (delivery.object_id, delivery.id) == (made.id, due.id)
    assert outbox.of_object(f"job_{made.id.removeprefix('batch_')}", "me") == []


def test_a_batch_that_failed_is_told_of(store: JobStore, outbox: DeliveryStore) -> None:
    batches = batch_store(store)
    wanted = Webhook(URL, ("batch.failed",))
    made = batches.create(NewBatch(endpoint=CHAT, input_file_id="file_x", webhook=wanted))
    assert batches.lead("token", {"": 1}) is not None
    batches.fail("token", made.id, "empty_file", 'it has "no" lines')
    [due] = take(outbox)
    [error] = json.loads(due.body)["data"]["errors"]
    assert (error["code"], error["message"]) == ("empty_file", 'it has "no" lines')
