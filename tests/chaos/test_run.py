"""When work counts as ended, which is what recoveries are timed by."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tasks.store.jobs import JobStore
from tests.chaos.run import Size, running

NOTHING = Size(strikes=0, jobs_per_s=0.0, lines=0, delay_s=0.0, outage_s=0.0, large=0, minutes=0.0)


@dataclass
class Still:
    """A store, and nothing that works on it."""

    store: JobStore
    url: str = "http://127.0.0.1:1"
    other: str | None = None

    def is_worker(self, name: str, worker_id: str) -> bool:
        return name == worker_id


@pytest.mark.parametrize(("kind", "work_id", "list_name"), [
    ("job", "job_1", "status:running"), ("win", "win_1-1", "window_leases")
])  # fmt: skip
def test_work_ends_with_its_record(store: JobStore, kind: str, work_id: str, list_name: str) -> None:
    redis, key = store.db.redis, f"{store.db.prefix}{kind}:{work_id}"
    redis.hset(key, mapping={"status": "running", "worker": "w"})
    redis.zadd(store.db.prefix + list_name, {work_id: 1})
    with running(Still(store), NOTHING) as trial:
        assert trial.jobs_of("w") == [work_id]
        assert not trial.has_ended(work_id)
        redis.hset(key, "status", "queued")
        assert not trial.has_ended(work_id)
        redis.delete(key)
        assert trial.has_ended(work_id)
