"""The events that Flower lives on, sent from many threads at once through a real broker."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from celery import Celery

from tasks.base.settings import Settings
from tasks.broker.celery_app import make_app
from tasks.broker.task_events import WholeDispatcher
from tasks.broker.wakeable_consumer import EVENTS_S
from tasks.records.job import Status
from tasks.store.jobs import JobStore
from tests.support.workers import Workers
from tests.tasks.helpers.records import ended, queued, waiting_for

THREADS, EACH = 4, 250
TASKS = "task.multi"  # Celery's name of messages with events of several tasks
JOBS = 60


@pytest.fixture
def app(settings: Settings) -> Iterator[Celery]:
    app = make_app(settings)
    yield app
    app.close()


@contextlib.contextmanager
def receiving(app: Celery) -> Iterator[Callable[[int], Counter[str]]]:
    """Gives a function that waits for so many events, and counts them by task."""
    received: Counter[str] = Counter()
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(
            connection, handlers={"task-succeeded": lambda event: received.update([event["uuid"]])}
        )
        with receiver.consumer_context() as (own, _channel, _consumers):
            with contextlib.suppress(TimeoutError):
                own.drain_events(timeout=0.2)  # subscribes

            def wait(count: int) -> Counter[str]:
                with contextlib.suppress(TimeoutError):
                    while len(received) < count:
                        own.drain_events(timeout=5)
                return received

            yield wait


@contextlib.contextmanager
def dispatching(app: Celery) -> Iterator[WholeDispatcher]:
    with app.connection_for_write() as connection:
        dispatcher = app.events.Dispatcher(connection, hostname="w", buffer_group=["task"])
        assert isinstance(dispatcher, WholeDispatcher)
        yield dispatcher


def test_events_sent_while_others_are_published_are_not_lost(app: Celery) -> None:
    with receiving(app) as received, dispatching(app) as dispatcher:

        def end_tasks(thread: int) -> None:
            for number in range(EACH):
                dispatcher.send("task-succeeded", uuid=f"{thread}-{number}")

        threads = [threading.Thread(target=end_tasks, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            dispatcher.flush()
        dispatcher.flush()
        found = received(THREADS * EACH)
    assert len(found) == THREADS * EACH
    assert set(found.values()) == {1}


def test_a_task_that_began_with_an_earlier_dispatcher_is_told_of_by_the_next(app: Celery) -> None:
    """As after a lost connection: Celery closes one dispatcher, and tasks under way still hold it."""
    with receiving(app) as received, dispatching(app) as first, dispatching(app) as second:
        first.send("task-succeeded", uuid="before")
        first.close()
        second.extend_buffer(first)
        first.send("task-succeeded", uuid="after")
        second.flush()
        assert received(2) == {"before": 1, "after": 1}


def test_what_cannot_be_sent_is_kept_however_often(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving(app) as received, dispatching(app) as dispatcher:
        dispatcher.send("task-succeeded", uuid="kept")
        with monkeypatch.context() as patch:

            def gone(*_: object, **__: object) -> None:
                raise ConnectionError("no broker")

            patch.setattr(dispatcher.producer, "publish", gone)
            for _ in range(3):
                dispatcher.flush()
        dispatcher.flush()
        assert received(1) == {"kept": 1}


def told_by(message: dict[str, str]) -> list[dict[str, str]]:
    """The events of a message of TASKS."""
    events: list[dict[str, str]] = json.loads(base64.b64decode(json.loads(message["data"])["body"]))
    return events


@pytest.mark.stack
def test_a_worker_that_shuts_down_tells_of_the_tasks_that_end_meanwhile(
    settings: Settings, store: JobStore, workers: Workers
) -> None:
    worker = workers.model(settings.model_copy(update={"drain_s": 30.0}))
    with store.db.redis.pubsub(ignore_subscribe_messages=True) as messages:
        messages.psubscribe(f"*celeryev/{TASKS}")
        messages.get_message(timeout=2)
        job_id = queued(store, "hello delay=1.5")
        waiting_for(store, job_id, Status.RUNNING)
        worker.process.terminate()
        types: list[str] = []
        while "task-succeeded" not in types:
            message = messages.get_message(timeout=10)
            assert message is not None, f"{types}, {worker.text()}"
            types += [event["type"] for event in told_by(message) if event["uuid"] == job_id]
    assert ended(store, job_id).status is Status.SUCCEEDED


@pytest.mark.stack
def test_a_worker_sends_the_events_of_many_tasks_together(
    settings: Settings, store: JobStore, workers: Workers
) -> None:
    workers.model(settings)
    with store.db.redis.pubsub(ignore_subscribe_messages=True) as messages:
        messages.psubscribe(f"*celeryev/{TASKS}")
        messages.get_message(timeout=2)
        began = time.monotonic()
        job_ids = {queued(store) for _ in range(JOBS)}
        told: Counter[str] = Counter()
        sent = 0
        while told.total() < 3 * JOBS:
            message = messages.get_message(timeout=5)
            assert message is not None, f"{told.total()} events of {3 * JOBS}"
            told.update(event["uuid"] for event in told_by(message))
            sent += 1
        took_s = time.monotonic() - began
    assert told == dict.fromkeys(job_ids, 3), "received, started, succeeded"
    assert sent <= took_s / EVENTS_S + 2
