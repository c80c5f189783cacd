"""A Redis that answers and refuses to write, as one that has lost its replicas, or whose disk is full."""

from __future__ import annotations

from functools import partial

import pytest

from tasks.records.job import NewJob, Status
from tasks.store.jobs import JobStore
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import Worker, Workers, wait_until

REFUSES = "min-replicas-to-write"
LIMIT_S = 30.0


@pytest.mark.stack
def test_workers_go_on_once_it_takes_writes_again(own_redis: RedisServer, workers: Workers) -> None:
    settings = fast_settings(own_redis)
    store = JobStore(settings)
    started = [workers.model(settings), workers.io(settings)]

    def run() -> None:
        job = store.create(NewJob(request={"prompt": "x"}))
        wait_until(lambda: store.get(job.id).status is Status.SUCCEEDED, LIMIT_S, report=started[0].text)

    try:
        run()
        store.db.redis.config_set(REFUSES, 1)
        for worker in started:
            wait_until(partial(_refused, worker), LIMIT_S, report=worker.text)
        store.db.redis.config_set(REFUSES, 0)
        run()
        assert [worker.process.poll() for worker in started] == [None, None]
    finally:
        store.close()


def _refused(worker: Worker) -> bool:
    return worker.text().count("NOREPLICAS") > 2
