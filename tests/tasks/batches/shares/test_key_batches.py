"""Batches of keys, run by real workers: shares by weight, and budgets that run out and come back."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import pytest

from tasks.base.settings import Settings
from tasks.batches.capacity import Capacity
from tasks.batches.cooldown import Cooldown
from tasks.batches.dispatcher import MOST_IN_HAND, Dispatcher
from tasks.batches.ingest import Ingest
from tasks.batches.store import BatchStore
from tasks.records.api_key import Limits
from tasks.records.batch import Ending
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tasks.store.windows import WindowStore
from tests.support.workers import Workers, wait_until
from tests.tasks.helpers.client import Client, line

pytestmark = pytest.mark.stack


def test_weights_are_shares_of_the_workers(
    client: Client, store: JobStore, settings: Settings, workers: Workers
) -> None:
    keys = KeyStore(store.db)
    heavy, light = (keys.create("k", Limits(weight=weight))[0] for weight in (3.0, 1.0))
    lines = [line(n, "x delay=0.02") for n in range(2500)]
    small, large = (client.create(lines, owner=key.id) for key in (light, heavy))
    workers.io(settings)
    wait_until(lambda: client.get(small).validated and client.get(large).validated)
    workers.model(settings)
    wait_until(lambda: client.get(large).completed >= 300, 120)  # by then what was sent first has ended
    before = client.get(large).completed, client.get(small).completed
    wait_until(lambda: client.get(large).completed >= 1500, 120)
    ratio = (client.get(large).completed - before[0]) / (client.get(small).completed - before[1])
    for batch in (small, large):
        client.batches.stop(batch.id, Ending.CANCELLED)
    assert 2 < ratio < 4.5
    for batch in (small, large):
        client.end(batch)


def test_a_spent_budget_stops_a_batch_until_there_are_tokens_again(
    client: Client, store: JobStore, settings: Settings, workers: Workers
) -> None:
    keys, batches = KeyStore(store.db), BatchStore(store.db)
    key, _ = keys.create("k", Limits(tokens_per_day=100))
    other, _ = keys.create("other", Limits())
    batch = client.create([line(n, max_tokens=10) for n in range(100)], owner=key.id)
    free = client.create([line(n) for n in range(100)], owner=other.id)
    workers.io(settings)
    workers.model(settings)
    assert client.end(free).completed == 100, "nobody else waits"
    wait_until(lambda: not batches.live(batch.id) and keys.list()[0].tokens_today >= 100)
    rested = client.get(batch)
    assert 0 < rested.completed < 100
    assert keys.list()[0].tokens_today < 100 + 10, "beyond the budget by what one line may take"
    store.db.redis.hset(f"{store.db.prefix}key:{key.id}", "tokens_per_day", 100_000)
    done = client.end(batch)
    assert done.completed == 100
    (found, _) = keys.list()
    assert found.tokens_today == done.input_tokens + done.output_tokens, "what was used, and nothing else"


def in_flight_after_rounds(client: Client, store: JobStore, settings: Settings) -> Mapping[str, int]:
    """Lines of each owner, when all batches have been read and two rounds have sent, without a worker."""
    batches, token = client.batches, "me"
    capacity = Capacity(fills=4, most_s=1.0)
    room = capacity.update([])
    work = batches.lead(token, room)
    assert work is not None
    for active in work.active:
        deque(Ingest(client.files, batches, settings, token).run(active.batch.id), maxlen=0)
    dispatcher = Dispatcher(batches, WindowStore(store.db), client.files, token, Cooldown(1.0))
    for _ in range(2):  # the first chunk of each batch has one line
        work = batches.lead(token, room)
        assert work is not None
        dispatcher.send(work, capacity, files_s=1.0)
    work = batches.lead(token, room)
    assert work is not None
    assert sum(work.in_flight[""].values()) <= room[""] == 32
    return work.in_flight[""]


def test_batches_that_overtake_each_other_do_not_all_stay_in_memory(
    client: Client, store: JobStore, settings: Settings
) -> None:
    batches, token, capacity = client.batches, "me", Capacity(fills=4, most_s=1.0)
    dispatcher = Dispatcher(batches, WindowStore(store.db), client.files, token, Cooldown(1.0))
    for priority in range(MOST_IN_HAND + 10):
        client.create([line(n) for n in range(100)], priority=priority)
        work = batches.lead(token, capacity.update([]))
        assert work is not None
        for active in work.active:
            deque(Ingest(client.files, batches, settings, token).run(active.batch.id), maxlen=0)
        work = batches.lead(token, capacity.update([]))
        assert work is not None
        dispatcher.send(work, capacity, files_s=1.0)
    assert len(dispatcher._chunks) == MOST_IN_HAND


def test_rounds_send_of_all_batches_of_a_key_what_its_tokens_allow(
    client: Client, store: JobStore, settings: Settings
) -> None:
    keys = KeyStore(store.db)
    key, _ = keys.create("k", Limits(tokens_per_day=95))
    for _ in range(2):
        client.create([line(n, max_tokens=10) for n in range(30)], owner=key.id)
    assert in_flight_after_rounds(client, store, settings) == {key.id: 10}
    assert keys.list()[0].tokens_today == 100, "the tenth line was sent when five tokens were left"


def test_room_that_a_key_cannot_pay_for_is_left_to_others(
    client: Client, store: JobStore, settings: Settings
) -> None:
    keys = KeyStore(store.db)
    key, _ = keys.create("k", Limits(tokens_per_day=95))
    other, _ = keys.create("other", Limits())
    for owner in (key, other):
        client.create([line(n, max_tokens=10) for n in range(60)], owner=owner.id)
    assert in_flight_after_rounds(client, store, settings) == {key.id: 10, other.id: 22}
