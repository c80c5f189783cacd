"""A queue with jobs of the release before, which sent messages after its scripts, and what its peers meet."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import redis

from tasks.base.settings import Settings
from tasks.batches.store import BatchStore
from tasks.records.batch import BatchStatus, line_job_id
from tasks.records.job import Status
from tasks.store.jobs import Beat, ClaimRejection, JobStore, TextChunk
from tasks.webhooks.store import DeliveryStore
from tests.support.workers import Workers, wait_until
from tests.tasks.helpers.batches import made
from tests.tasks.helpers.records import batch_store, ended, sent_ids
from tests.tasks.store.jobs.earlier_release import (
    BATCH_LINES,
    DEFERRED,
    EARLIER,
    KEY,
    MODEL,
    RUNNING,
    TIME,
    VARIANTS,
    orders,
    pair,
    restore_earlier,
    stored,
)

COUNT_LINES = {"hash outstanding", "hash stored_bytes", "string seq"}
LISTS = re.compile(r"list medusaq\.")
OF_LIVE_JOBS = re.compile(
    r"\w+ (medusaq\.|pending:|leases|deadlines|live$|(interactive_)?(held|outstanding))"
)


def write(store: JobStore) -> None:
    """All that the earlier release has stored."""
    store.db.redis.zadd(f"{store.db.prefix}models", {MODEL: 1})
    all_orders = orders()
    for prompt, order in all_orders.items():
        if prompt not in DEFERRED:
            store.create(order)
    store.create_all(pair(), VARIANTS)
    for prompt, lease_ms in zip(RUNNING, (3000, 1), strict=True):
        with closing(JobStore(store.db.settings.model_copy(update={"lease_ms": lease_ms}))) as other:
            assert not isinstance(other.claim(all_orders[prompt].id, "here:1", "token"), ClaimRejection)
    batches = batch_store(store)
    batches.lead("x", {"": 64}, {"": 1})
    for prompt in DEFERRED:
        store.create(all_orders[prompt])
    made(batches)


def comparable(keys: dict[str, Any]) -> dict[str, Any]:
    """Without times and random ids, and of messages the ids of their jobs alone."""
    for name in keys:
        if LISTS.match(name):
            keys[name] = [json.loads(text)["headers"]["id"] for text in keys[name]]
    text = TIME.sub("TIME", re.sub(r"NOW[+-]\d+", "TIME", json.dumps(keys)))
    text = re.sub(r"tokens:\d+", "tokens:DAY", text)
    [batch_id] = keys["zset batches"]
    text = text.replace(batch_id, "batch_B").replace(f"job_{batch_id.removeprefix('batch_')}", "job_B")
    for place, job_id in enumerate(sorted(keys["zset jobs"], key=lambda one: int(keys["zset jobs"][one]))):
        text = text.replace(job_id, f"job-{place}")
    whole: dict[str, Any] = json.loads(text)
    return whole


def without_lines(keys: dict[str, Any]) -> dict[str, Any]:
    """Without jobs of lines of a batch, of which there are windows now, and without what counts them."""
    kept: dict[str, Any] = {}
    for name, value in keys.items():
        if "_B" in name or name in COUNT_LINES:
            continue
        if isinstance(value, dict):
            value = {member: score for member, score in value.items() if "job_B" not in member}
        elif isinstance(value, list):
            value = [member for member in value if "job_B" not in member]
        if value:
            kept[name] = value
    return kept


def test_the_scripts_write_what_the_release_before_wrote_and_sent(store: JobStore) -> None:
    """So its workers run what new gateways accept, and new ones what it has accepted."""
    write(store)
    now = without_lines(comparable(stored(store)))
    earlier = without_lines(comparable(json.loads(EARLIER.read_text())))
    taken = {order.id for prompt, order in orders().items() if prompt in RUNNING}
    assert {name for name in now if LISTS.match(name)} == {name for name in earlier if LISTS.match(name)}
    places = {f"job-{n}" for n, order in enumerate(orders().values()) if order.id in taken}
    for name in filter(LISTS.match, earlier):
        now[name] = [place for place in now[name] if place not in places]  # workers have taken theirs
    for place in places:
        assert now[f"hash job:{place}"].pop("holder") == "", "what earlier workers do not name"
        fences = [keys[f"hash job:{place}"].pop("fence") for keys in (earlier, now)]
        assert fences == ["1", "TIME"], "later than any of an earlier worker"
    for record in (keys for name, keys in earlier.items() if name.startswith("hash job:")):
        told = record.pop("preview")  # which Flower was told of
        record["size"] = f"{len(told)} chars"
        record["stored"] = str(int(record["stored"]) + len(record["size"]) - len(told))
    assert now == earlier


@contextmanager
def heard(store: JobStore, gateway: str) -> Iterator[redis.client.PubSub]:
    with store.db.redis.pubsub(ignore_subscribe_messages=True) as events:
        events.subscribe(f"{store.db.prefix}events:{gateway}")
        events.get_message(timeout=2)
        yield events


def test_the_end_of_a_job_that_an_earlier_worker_runs(store: JobStore, settings: Settings) -> None:
    restore_earlier(settings, store)
    running, deferred = orders()["running"], [orders()[prompt].id for prompt in DEFERRED]
    chunk = TextChunk(running.id, 1, 0, "a text", "{}")
    assert store.heartbeat([(running.id, 1)]) == [Beat.STREAMING]
    assert store.append_text([chunk]) == [True]
    assert store.text_so_far(running.id) == "a text", "where an earlier gateway reads it every two seconds"
    store.watch(store.get(running.id), "new")
    with heard(store, "new") as events:
        assert store.finish(running.id, 1, Status.SUCCEEDED, {"text": "a text"})
        assert events.get_message(timeout=2)["data"] == f"{running.id} succeeded"
    assert sent_ids(store)[-1] == deferred[1], "whose owner has nothing in flight"
    assert not store.text_so_far(running.id)
    left = store.db.redis.hgetall(f"{store.db.prefix}interactive_outstanding")
    assert left == {"": "4", KEY: "1", "b": "1", f"@{MODEL}": "1"}
    [hook] = DeliveryStore(store.db, settings).of_object(running.id, "")
    assert hook.type == "job.succeeded"


@pytest.mark.stack
def test_all_jobs_of_the_release_before_run_once_and_are_announced(
    store: JobStore, settings: Settings, workers: Workers
) -> None:
    restore_earlier(settings, store)
    jobs, [batch_id] = (
        store.db.redis.zrange(f"{store.db.prefix}{name}", 0, -1) for name in ("jobs", "batches")
    )
    of_batch = {line_job_id(batch_id, number) for number in range(1, BATCH_LINES + 1)}
    with heard(store, "new") as events:
        for job_id in jobs:
            store.watch(store.get(job_id), "new")
        workers.model(settings)
        workers.io(settings)
        done = {job_id: ended(store, job_id) for job_id in jobs if job_id not in of_batch}
        batches = BatchStore(store.db)
        wait_until(lambda: batches.get(batch_id).status is BatchStatus.COMPLETED)
        told = list(iter(lambda: events.get_message(timeout=0.3), None))
    assert {job.status for job in done.values()} == {Status.SUCCEEDED}
    again = {orders()[prompt].id for prompt in RUNNING}  # their workers have gone
    assert {job_id: job.attempts for job_id, job in done.items()} == {
        job_id: 2 if job_id in again else 1 for job_id in done
    }
    assert batches.get(batch_id).completed == BATCH_LINES
    ends = Counter(tuple(message["data"].split(" ", 2)[:2]) for message in told)
    assert {job_id: count for (job_id, status), count in ends.items() if status == "succeeded"} == (
        dict.fromkeys(jobs, 1)
    )
    assert store.db.redis.hgetall(f"{store.db.prefix}ended") == {"succeeded": str(len(jobs))}
    assert not [name for name in stored(store) if OF_LIVE_JOBS.match(name)]
    hooks = DeliveryStore(store.db, settings)
    for prompt, order in orders().items():
        assert len(hooks.of_object(order.id, order.owner)) == (order.webhook is not None), prompt
