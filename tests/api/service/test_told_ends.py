"""The end of a job comes to the gateway that waits for it together with its record, unless that is long.

That of a batch comes as it happens.
"""

from __future__ import annotations

import asyncio

import pytest

from api.service import job_events
from api.service.dependencies import Gateway
from tasks.base.errors import JobNotFound
from tasks.base.settings import Settings
from tasks.files.factory import make_store
from tasks.records.job import Job, Status
from tasks.store.jobs import JobStore
from tests.tasks.helpers.batches import ROOM, made
from tests.tasks.helpers.records import batch_store, claimed, new

LIMIT_S = 30.0

pytestmark = pytest.mark.stack


async def _wait_for_deleted(settings: Settings, store: JobStore, text: str, before: str = "") -> Job:
    """Wait for a job whose record is deleted as soon as it has ended. before: a message that precedes it."""
    gateway = Gateway(settings, make_store(settings.files))
    gateway.job_events.start()
    job = store.create(new(waiter=gateway.job_events.id))
    channel = f"{store.db.prefix}events:{gateway.job_events.id}"
    await _subscribed(store, channel)
    if before:
        store.db.redis.publish(channel, before)
        await asyncio.sleep(0.2)  # so that it has been read
        await _subscribed(store, channel)
    waiting = asyncio.create_task(gateway.job_events.wait(job, LIMIT_S))
    await asyncio.sleep(0.1)  # so that it waits
    fencing_token = claimed(store, job.id).fencing_token
    result = {"text": text, "usage": {"total_tokens": 1}}
    assert store.finish(job.id, fencing_token, Status.SUCCEEDED, result=result)
    store.delete(job.id)  # in the same turn of the event loop, which has not read the end yet
    try:
        return await waiting
    finally:
        await gateway.job_events.stop()
        gateway.close()


async def _subscribed(store: JobStore, channel: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not store.db.redis.pubsub_channels(channel):
            await asyncio.sleep(0.01)


def test_a_short_record_is_not_read_again(settings: Settings, store: JobStore) -> None:
    job = asyncio.run(_wait_for_deleted(settings, store, "short"))
    assert job.status is Status.SUCCEEDED
    assert job.result == {"text": "short", "usage": {"total_tokens": 1}}
    assert job.request["prompt"] == "hi"


def test_a_long_record_is_read(settings: Settings, store: JobStore) -> None:
    with pytest.raises(JobNotFound):
        asyncio.run(_wait_for_deleted(settings, store, "long " * 1000))


def test_a_message_that_cannot_be_read_does_not_end_the_listening(
    settings: Settings, store: JobStore
) -> None:
    job = asyncio.run(_wait_for_deleted(settings, store, "short", before="job_1 succeeded {"))
    assert job.status is Status.SUCCEEDED


def test_the_end_of_a_batch_is_told(
    settings: Settings, store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_events, "POLL_S", 2 * LIMIT_S)
    batches = batch_store(store)
    batch, looks = made(batches), list[bool]()

    def has_ended() -> bool:
        looks.append(batches.get(batch.id).ended)
        return looks[-1]

    async def wait() -> None:
        gateway = Gateway(settings, make_store(settings.files))
        gateway.job_events.start()
        try:
            await _subscribed(store, f"{store.db.prefix}batch_ends")
            waiting = asyncio.create_task(gateway.job_events.wait_for_batch(batch.id, has_ended, LIMIT_S))
            async with asyncio.timeout(LIMIT_S):
                while not looks:
                    await asyncio.sleep(0.01)
            assert batches.lead("me", ROOM)
            batches.finish("me", batch.id, "completed")
            await waiting
        finally:
            await gateway.job_events.stop()
            gateway.close()

    asyncio.run(wait())
    assert looks == [False, True]
