"""A worker whose broker connection fails at one request, or falls silent: it goes on taking messages."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tasks.base.queue_names import GENERATE, queue_of
from tasks.broker.celery_app import POLL_S, make_app
from tasks.broker.wakeable_consumer import overdue_s
from tasks.records.job import Priority, Status
from tasks.store.jobs import JobStore
from tests.chaos.faults.proxy import Proxy
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import Workers, wait_until
from tests.tasks.helpers.records import ended, queued

pytestmark = pytest.mark.stack
ASKS = b"BRPOP"  # with which it waits for a message


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    proxy = Proxy(redis_server.port)
    yield proxy
    proxy.close()


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
