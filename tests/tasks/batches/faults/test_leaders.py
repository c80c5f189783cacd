"""Leaders that are slow, overtaken, stopped or hanging, and how much they do in a round."""

from __future__ import annotations

import json
import threading
from collections import deque

import pytest

from tasks.base.errors import LeadLost
from tasks.batches import leader as batch_driver
from tasks.batches.ingest import Ingest
from tasks.records.batch import Batch
from tasks.store.workers import Registry, WorkerInfo
from tests.support.workers import wait_until
from tests.tasks.helpers.io_workers import IoWorker, System


def test_a_part_written_late_replaces_none_that_counts(system: System, io: IoWorker) -> None:
    batch = system.sent(2, io)
    other = system.io()

    def overtaken() -> None:
        system.answer(batch, 2)
        system.falls_silent()
        other.until(lambda: bool(system.batches.get(batch.id).segments))

    io.files.meanwhile = overtaken
    system.answer(batch, 1)
    with pytest.raises(LeadLost):
        io.until(lambda: False)
    other.until(lambda: system.is_ended(batch))
    assert system.entries(system.batches.get(batch.id).output_file_id) == ["id-0", "id-1"]
    system.ended_long_ago(batch)
    other.until(lambda: system.objects(batch) == [])


def test_being_slow_costs_the_lead_only_to_another(system: System, io: IoWorker) -> None:
    batch = system.sent(1, io)
    io.files.meanwhile = system.falls_silent
    system.answer(batch, 1)
    io.until(lambda: len(system.batches.get(batch.id).segments) == 1)
    io.until(lambda: system.is_ended(batch))


@pytest.mark.slow
def test_the_lead_is_renewed_while_a_round_takes_long(system: System, io: IoWorker) -> None:
    go_on = threading.Event()
    held_up = threading.Event()

    def wait() -> None:
        held_up.set()
        go_on.wait(60)

    io.files.meanwhile = wait
    batch = system.create(1)
    io.driver.start()
    wait_until(lambda: system.batches.get(batch.id).validated)
    wait_until(lambda: system.lines_live(batch) == 1)
    system.answer(batch, 1)
    assert held_up.wait(10)
    key = f"{system.store.db.prefix}leader"
    wait_until(lambda: system.store.db.redis.pttl(key) < 4500)
    wait_until(lambda: system.store.db.redis.pttl(key) > 4500)
    go_on.set()
    wait_until(lambda: system.is_ended(batch))


@pytest.mark.slow
def test_one_that_hangs_does_not_keep_the_lead(
    system: System, io: IoWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    batch = system.sent(1, io)
    monkeypatch.setattr(batch_driver, "LONGEST_ROUND_S", 0.5)
    io.files.meanwhile = lambda: go_on.wait(60)
    system.answer(batch, 1)
    io.driver.start()
    try:
        other = system.io()
        other.until(lambda: system.is_ended(batch))
    finally:
        go_on.set()
    assert system.entries(system.batches.get(batch.id).output_file_id) == ["id-0"]


def test_one_whose_rounds_fail_does_not_keep_the_lead(system: System, io: IoWorker) -> None:
    """Over the record of a worker that cannot be understood, until it is mended."""
    redis, prefix = system.store.db.redis, system.store.db.prefix
    io.driver.start()
    wait_until(system.batches.has_leader)
    redis.set(f"{prefix}worker:broken", "{")
    redis.sadd(f"{prefix}workers", "broken")
    wait_until(lambda: not redis.exists(f"{prefix}led_by", f"{prefix}leader", f"{prefix}bulk_room"))
    redis.delete(f"{prefix}worker:broken")
    wait_until(system.batches.has_leader)


def test_what_only_newer_workers_tell_is_ignored(system: System) -> None:
    registry = Registry(system.store.db, 60)
    registry.refresh(WorkerInfo("new", "model", 512, slots=4, pid=1, host="here", started_at=0.0))
    key = f"{system.store.db.prefix}worker:new"
    system.store.db.redis.set(key, json.dumps({**json.loads(system.store.db.redis.get(key)), "later": 1}))
    assert [(info.id, info.slots) for info in registry.live()] == [("new", 4)]


def test_one_that_resigned_leads_no_more(system: System) -> None:
    batches = system.batches
    assert batches.lead("me", {"": 64}) is not None
    batches.resign("me")
    with pytest.raises(LeadLost):
        batches.renew("me")
    assert batches.lead("other", {"": 64}) is not None


def ended_batches(system: System) -> list[Batch]:
    """Two with a result each to collect, by an io worker that ended since."""
    first = system.io()
    batches = [system.sent(1, first) for _ in range(2)]
    first.driver.stop()
    for batch in batches:
        system.answer(batch, 1)
    return batches


def collected(system: System, batches: list[Batch]) -> int:
    return sum(bool(system.batches.get(batch.id).segments) for batch in batches)


def test_a_slow_file_store_ends_a_round_early(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_driver, "FILES_S", 0)
    batches = ended_batches(system)
    io = system.io()
    for done in (1, 2):
        assert io.driver.run_round()
        assert collected(system, batches) == done, "the next goes on with the other batch"
    system.sent(1, io)


def test_of_a_slow_file_store_one_chunk_is_read_in_a_round(
    system: System, io: IoWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_driver, "FILES_S", 0)
    batches = [system.create(1) for _ in range(2)]
    assert system.batches.lead("reader", {"": 64}) is not None
    for batch in batches:
        deque(Ingest(io.files, system.batches, system.settings, "reader").run(batch.id), maxlen=0)
    system.batches.resign("reader")
    for done in (1, 2):
        assert io.driver.run_round()
        assert sum(system.lines_live(batch) for batch in batches) == done


def test_stopping_does_not_wait_for_all_batches(system: System) -> None:
    batches = ended_batches(system)
    io = system.io()
    stopping = threading.Thread(target=io.driver.stop)

    def stop() -> None:
        stopping.start()
        assert io.driver._stopping.wait(10)

    io.files.meanwhile = stop
    io.driver.start()
    wait_until(lambda: stopping.ident is not None)
    stopping.join()
    assert collected(system, batches) == 1


def test_cleaning_up_leaves_room_for_reading(system: System, io: IoWorker) -> None:
    key = f"{system.store.db.prefix}batches:cleanup"
    system.store.db.redis.sadd(key, *(f"batch_old{n}" for n in range(20)))
    io.files.may_list.clear()
    try:
        io.driver.run_round()
        system.sent(1, io)
    finally:
        io.files.may_list.set()
    io.until(lambda: not system.store.db.redis.exists(key))
