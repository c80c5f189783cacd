"""A snapshot of Redis, restored as docs/how-to/operations.md says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tasks.base.errors import JobNotFound
from tasks.records.job import NewJob, Status
from tasks.store.jobs import JobStore
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import wait_until


@pytest.mark.stack
def test_a_snapshot_is_restored_into_a_server_with_a_log(own_redis: RedisServer, tmp_path: Path) -> None:
    settings = fast_settings(own_redis)
    store = JobStore(settings)
    kept = store.create(NewJob(request={"prompt": "before"}))
    store.db.redis.save()
    later = store.create(NewJob(request={"prompt": "after"}))
    store.close()

    restored = RedisServer(tmp_path / "restored")
    restored.folder.mkdir()
    shutil.copy(own_redis.folder / "dump.rdb", restored.folder)
    restored.start(appendonly="no")
    new = JobStore(settings.model_copy(update={"redis_url": restored.url}))
    new.db.redis.config_set("appendonly", "yes")
    wait_until(lambda: not new.db.redis.info("persistence")["aof_rewrite_in_progress"])
    restored.stop()
    restored.start()
    try:
        assert new.get(kept.id).status is Status.QUEUED
        with pytest.raises(JobNotFound):
            new.get(later.id)
    finally:
        new.close()
        restored.stop()
