"""A worker whose broker connection fails at one request, or falls silent: it goes on taking messages."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from functools import partial

import pytest
from kombu import Message

from tasks.base.queue_names import GENERATE, queue_of
from tasks.broker.celery_app import POLL_S, make_app
from tasks.broker.wakeable_consumer import WakingConsumer, overdue_s
from tasks.records.job import Priority, Status
from tasks.store.jobs import JobStore
from tests.chaos.faults.proxy import Proxy
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import Workers, wait_until
from tests.tasks.helpers.records import ended, queued, waiting_for

pytestmark = pytest.mark.stack
log = logging.getLogger(__name__)
ACKNOWLEDGES = b"\r\nZREM\r\n"  # the command with which kombu acknowledges a message
ASKS = b"BRPOP"  # with which it waits for a message
ALL_SLOTS = 2


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    proxy = Proxy(redis_server.port)
    yield proxy
    proxy.close()


def test_an_acknowledgement_that_gets_no_answer_costs_no_place_in_the_prefetch_window(
    redis_server: RedisServer, workers: Workers, proxy: Proxy
) -> None:
    settings = fast_settings(redis_server, slots=ALL_SLOTS, redis_url=redis_server.within(1))
    store = JobStore(settings)
    through = settings.model_copy(update={"redis_url": f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=1"})
    worker = workers.model(through)
    for _ in range(ALL_SLOTS):
        job_id = queued(store, "hello delay=0.5")
        waiting_for(store, job_id, Status.RUNNING)
        proxy.lose(ACKNOWLEDGES)
        assert ended(store, job_id).status is Status.SUCCEEDED
        wait_until(lambda: proxy.has_lost, report=worker.text)
    together = [queued(store, "hello delay=1") for _ in range(ALL_SLOTS)]
    wait_until(lambda: len(store.page(10, status=Status.RUNNING).jobs) == ALL_SLOTS, report=worker.text)
    for job_id in together:
        assert ended(store, job_id).status is Status.SUCCEEDED
    key = f"{settings.key_prefix}unacked"
    wait_until(lambda: store.db.redis.hlen(key) == 0, report=worker.text)
    store.close()


def test_a_connection_that_falls_silent_is_given_up(
    redis_server: RedisServer, workers: Workers, proxy: Proxy
) -> None:
    """As of a host that is gone, whose kernel ends nothing. A frozen server looks the same."""
    settings = fast_settings(redis_server, redis_url=redis_server.within(1))
    store = JobStore(settings)
    through = settings.model_copy(update={"redis_url": f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=1"})
    worker = workers.model(through)
    proxy.lose(ASKS)
    wait_until(lambda: proxy.has_lost, report=worker.text)
    job_id = queued(store, "hello")
    assert ended(store, job_id).status is Status.SUCCEEDED, worker.text()
    store.close()


def test_a_message_that_a_task_rejects_comes_again(redis_server: RedisServer) -> None:
    """Celery says by position whether it is to be put back, as when a worker that shuts down has read one."""
    app = make_app(fast_settings(redis_server))
    received: list[Message] = []
    settling = WakingConsumer.__new__(WakingConsumer)  # its own connection would read the message
    settling._failed_channel = None
    with app.connection_for_read() as connection:
        consumer = app.amqp.TaskConsumer(connection.default_channel, on_message=received.append)
        consumer.consume()
        app.send_task(GENERATE, queue=queue_of(Priority.BULK))
        while len(received) < 2:
            connection.drain_events(timeout=10)
            message = received[-1]
            message.reject_log_error = partial(settling._settle, message, message.reject)
            message.reject_log_error(log, (), len(received) < 2)  # as Request.reject() of Celery
        assert received[0].headers["id"] == received[1].headers["id"]


def test_the_look_for_an_overdue_answer_leaves_it_to_the_event_loop(redis_server: RedisServer) -> None:
    app = make_app(fast_settings(redis_server, redis_url=redis_server.within(0.5)))
    received: list[object] = []
    with app.connection_for_read() as connection:
        consumer = app.amqp.TaskConsumer(connection.default_channel, on_message=received.append)
        consumer.consume()
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.1)  # asks for a message, and does not wait for the answer
        app.send_task(GENERATE, queue=queue_of(Priority.BULK))
        time.sleep(POLL_S + 0.5 + 0.1)  # the wait that Redis was asked for, and the time-out
        assert overdue_s(consumer.channel) is None
        connection.drain_events(timeout=5)
    assert len(received) == 1
    app.close()
