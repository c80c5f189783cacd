"""Senders of webhooks that come and go, and a Redis that restarts."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest

from tasks.base.settings import Settings
from tasks.records.webhook import DeliveryStatus
from tasks.store.jobs import JobStore
from tasks.webhooks.sender import WebhookSender
from tasks.webhooks.store import DeliveryStore, Schedule
from tests.support.peers.receivers import LOOPBACK, Received, receiving, status
from tests.support.servers import RedisServer, fast_settings
from tests.support.tuned import constants
from tests.support.workers import Workers, wait_until
from tests.tasks.helpers.outbox import SOON, Start, over, queue_delivery

DAY_S = 86_400.0


@pytest.fixture
def settings(redis_server: RedisServer) -> Settings:
    return fast_settings(redis_server, webhook_allow=LOOPBACK)


@pytest.mark.slow
def test_several_senders_deliver_each_once(store: JobStore, outbox: DeliveryStore, start: Start) -> None:
    with receiving() as one, receiving() as two:
        sent = [queue_delivery(store, (one, two)[n % 2].url) for n in range(60)]
        for _ in range(3):
            start()
        for delivery_id in sent:
            assert len(over(outbox, delivery_id).attempts) == 1
        assert sorted(got.headers["webhook-id"] for got in one.got + two.got) == sorted(sent)


@pytest.mark.slow
def test_a_sender_that_stops_lets_what_is_under_way_end(
    store: JobStore, settings: Settings, outbox: DeliveryStore
) -> None:
    sender = WebhookSender(settings, store.db, schedule=Schedule(timeout_s=30.0))
    sender.start()
    with receiving(held=True) as receiver:
        delivery_id = queue_delivery(store, receiver.url)
        receiver.wait_for(1)
        stopping = threading.Thread(target=sender.stop)
        stopping.start()
        wait_until(lambda: all(thread.name != "webhooks" for thread in threading.enumerate()))
        receiver.released.set()
        stopping.join()
        assert outbox.get(delivery_id, "me").status is DeliveryStatus.DELIVERED


@pytest.mark.slow
def test_a_restart_of_redis_loses_nothing(own_redis: RedisServer) -> None:
    settings = fast_settings(own_redis, webhook_allow=LOOPBACK)
    store = JobStore(settings)
    outbox = DeliveryStore(store.db, settings)
    sender = WebhookSender(settings, store.db, schedule=replace(SOON, retries_s=(0.05,)))
    try:
        with receiving() as receiver:
            sent = [queue_delivery(store, receiver.url) for _ in range(5)]
            own_redis.stop()
            sender.start()
            own_redis.start()
            for delivery_id in sent:
                assert over(outbox, delivery_id).status is DeliveryStatus.DELIVERED
    finally:
        sender.stop()
        store.close()


def test_a_sender_killed_before_it_notes_the_answer_delivers_again(
    own_redis: RedisServer, workers: Workers
) -> None:
    """Redis goes at the moment of the answer, so that it cannot be noted; then the sender is killed."""
    settings = fast_settings(own_redis, webhook_allow=LOOPBACK)
    chosen = constants({"tasks.webhooks.store.SCHEDULE": {"retries_s": [DAY_S], "timeout_s": 4.0}})
    store = JobStore(settings)
    outbox = DeliveryStore(store.db, settings)

    def answer(_: Received) -> tuple[int, dict[str, str]]:
        own_redis.stop()
        receiver.answer = status(200)
        return 200, {}

    try:
        with receiving() as receiver:
            receiver.answer = answer
            delivery_id = queue_delivery(store, receiver.url)
            sender = workers.io(settings, chosen)
            receiver.wait_for(1, 30)
            wait_until(lambda: f"{delivery_id}: Redis: " in sender.text(), report=sender.text)
            sender.kill()
            own_redis.start()
            assert outbox.get(delivery_id, "me").attempts == []
            workers.io(settings, chosen)
            delivery = over(outbox, delivery_id, 30)
            assert delivery.status is DeliveryStatus.DELIVERED
            assert [a["status_code"] for a in delivery.attempts] == [None, 200]
            first, second = receiver.got
            assert first.headers["webhook-id"] == second.headers["webhook-id"] == delivery_id
            assert first.body == second.body
            assert json.loads(first.body)["id"] == delivery_id
    finally:
        store.close()
