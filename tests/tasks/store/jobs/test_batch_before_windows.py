"""A batch that the release before windows had begun is finished, by windows as far as it had sent no jobs."""

from __future__ import annotations

import json

import pytest

from tasks.base.settings import Settings
from tasks.records.batch import BatchStatus
from tasks.store.jobs import JobStore
from tests.support.workers import Workers
from tests.tasks.helpers.client import Client, answered_once, ids
from tests.tasks.store.jobs.batch_before_windows import (
    BEFORE,
    FAILS,
    LINES,
    REFUSED,
    restore,
    text_of,
)

pytestmark = pytest.mark.stack


def test_it_has_lines_in_every_state() -> None:
    """Sent and waiting, claimed, ended, and in a segment; and some that were not sent."""
    keys = json.loads(BEFORE.read_text())["keys"]
    [ended] = [len(of) for key, of in keys.items() if key.endswith(":ended")]
    sent = len(keys["zset jobs"])
    assert min(len(keys["list medusaq.bulk"]), len(keys["zset leases"]), ended) > 0
    [record] = [of for key, of in keys.items() if key.startswith("hash batch:") and "total" in of]
    assert int(record["completed"]) + int(record["failed"]) > ended
    assert sent < LINES // 2
    assert not any("win" in key for key in keys)


def test_it_is_finished(store: JobStore, settings: Settings, client: Client, workers: Workers) -> None:
    restore(settings, store)
    [batch_id] = store.db.redis.zrange(f"{settings.key_prefix}batches", 0, -1)
    workers.model(settings)
    workers.io(settings)
    batch = client.end(client.batches.get(batch_id))
    assert batch.status is BatchStatus.COMPLETED
    assert (batch.total, batch.completed, batch.failed) == (LINES, LINES - 2, 2)
    assert batch.codes == {"invalid_value": 1, "boom": 1}
    answered_once(client, batch, LINES)
    good, bad = client.read(batch.output_file_id), client.read(batch.error_file_id)
    assert ids(bad) == [f"id-{REFUSED}", f"id-{FAILS}"]
    texts = [entry["response"]["body"]["choices"][0]["text"] for entry in good]
    assert texts == [text_of(n) for n in range(LINES) if n not in (REFUSED, FAILS)]
    left = {
        key.removeprefix(settings.key_prefix)
        for name in ("pending*", "leases", "deadlines", "window_leases", "outstanding", "medusaq.*", "win:*")
        for key in store.db.redis.scan_iter(settings.key_prefix + name)
    }
    assert left == set()
