"""A message whose content is a pickle: Celery would run what it says, if it took pickles."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.base.queue_names import QUEUES
from tasks.base.settings import Settings
from tasks.broker.celery_app import make_app
from tasks.records.job import Status
from tasks.store.jobs import JobStore
from tests.support.workers import Worker, Workers, wait_until
from tests.tasks.helpers.records import ended, queued


class Payload:
    """Unpickled in good faith, it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self._path,)


@pytest.fixture
def worker(settings: Settings, workers: Workers) -> Worker:
    return workers.model(settings)


@pytest.mark.stack
def test_it_is_refused_and_the_worker_goes_on(
    settings: Settings, store: JobStore, worker: Worker, tmp_path: Path
) -> None:
    marker = tmp_path / "ran"
    with make_app(settings) as app, app.producer_pool.acquire(block=True) as producer:
        task = {"task": "tasks.generate", "id": "x", "args": [Payload(marker)], "kwargs": {}}
        for name in QUEUES.values():
            producer.publish(task, routing_key=name, exchange="", serializer="pickle")
    wait_until(lambda: "ContentDisallowed" in worker.text(), report=worker.text)
    assert ended(store, queued(store, "x")).status is Status.SUCCEEDED
    assert worker.process.poll() is None
    assert not marker.exists()
