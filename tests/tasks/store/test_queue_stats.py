"""How the queues stand, which metrics, alerts and scaling go by."""

from __future__ import annotations

import pytest

from tasks.base.settings import Settings
from tasks.batches.capacity import SLOTS_UNSEEN
from tasks.records.api_key import Limits
from tasks.records.batch import Ending
from tasks.records.job import Priority
from tasks.records.window import WindowClaim
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tasks.store.queue_stats import queue_stats
from tasks.store.windows import WindowStore
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import Workers, wait_until
from tests.tasks.helpers.client import Client, line
from tests.tasks.helpers.records import queued

ROUNDING_S = 0.002
SENT = 2 * SLOTS_UNSEEN  # lines, while no worker is there


@pytest.fixture
def settings(redis_server: RedisServer) -> Settings:
    """What is claimed here stays claimed."""
    return fast_settings(redis_server, lease_ms=60_000)


def redis_now(store: JobStore) -> float:
    seconds, micros = store.db.redis.time()
    return float(seconds + micros / 1e6)


@pytest.mark.stack
def test_lines_of_a_batch_wait_too_before_they_are_in_a_window(
    client: Client, store: JobStore, settings: Settings, workers: Workers
) -> None:
    batch = client.create([line(n) for n in range(3 * SENT)])
    workers.io(settings)
    wait_until(lambda: client.get(batch).validated and queue_stats(store.db).in_flight == SENT)
    assert queue_stats(store.db).lines == 2 * SENT
    assert queue_stats(store.db).waiting["bulk"] == 3 * SENT
    windows = client.batches.live(batch.id)
    assert queue_stats(store.db).windows == {"": {"queued": len(windows), "running": 0}}
    for window_id in windows:
        assert isinstance(WindowStore(store.db).claim(window_id, "w", "token"), WindowClaim)
    assert queue_stats(store.db).windows == {"": {"queued": 0, "running": len(windows)}}
    before = redis_now(store)
    now = queue_stats(store.db)
    after = redis_now(store)
    assert now.waiting["bulk"] == now.lines == 2 * SENT
    assert before - ROUNDING_S <= batch.created_at + now.oldest_s["bulk"] <= after + ROUNDING_S
    client.batches.stop(batch.id, Ending.CANCELLED)
    assert (queue_stats(store.db).lines, queue_stats(store.db).oldest_s["bulk"]) == (0, 0)


@pytest.mark.stack
def test_lines_of_a_key_that_has_spent_its_tokens_wait_for_no_worker(
    client: Client, store: JobStore, settings: Settings, workers: Workers
) -> None:
    key, _ = KeyStore(store.db).create("k", Limits(tokens_per_day=10))
    batch = client.create([line(n, max_tokens=10) for n in range(3 * SENT)], owner=key.id)
    workers.io(settings)
    wait_until(lambda: client.get(batch).validated and queue_stats(store.db).in_flight > 0)
    assert queue_stats(store.db).lines == 0
    store.db.redis.hset(f"{store.db.prefix}key:{key.id}", "tokens_per_day", 1_000_000)
    assert queue_stats(store.db).lines > 0


def test_an_older_interactive_job_hides_no_held_bulk_one(store: JobStore) -> None:
    store.db.redis.set(f"{store.db.prefix}bulk_room", '{"": 0}')
    queued(store)
    queued(store, priority=Priority.BULK)
    assert queue_stats(store.db).deferred == 1
    wait_until(lambda: queue_stats(store.db).oldest_s["bulk"] > 0)
