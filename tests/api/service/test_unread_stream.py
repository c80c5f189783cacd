"""A listener that does not read: the gateway keeps little for it, and nothing is missing at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest

from api.requests.open_requests import OpenKey
from api.service.dependencies import Gateway
from api.service.job_events import MAX_PARTS
from api.service.job_stream import Text, follow
from tasks.base.settings import Settings
from tasks.files.factory import make_store
from tasks.records.job import Job, Status
from tasks.store.jobs import JobStore, TextChunk
from tests.tasks.helpers.records import claimed, queued

WORDS = [f"{n} " for n in range(5 * MAX_PARTS)]
LIMIT_S = 30.0

pytestmark = pytest.mark.stack


def test_a_listener_that_does_not_read(settings: Settings, store: JobStore) -> None:
    asyncio.run(_listen_late(settings, store))


async def _listen_late(settings: Settings, store: JobStore) -> None:
    gateway = Gateway(settings, make_store(settings.files))
    gateway.job_events.start()
    claim = claimed(store, queued(store, streaming=True, waiter=gateway.job_events.id))
    stream = follow(gateway, store.get(claim.job_id), OpenKey())
    assert isinstance(await anext(stream), Job)
    [inbox] = gateway.job_events._inboxes[claim.job_id]
    await _until(lambda: bool(store.db.redis.pubsub_channels(f"{store.db.prefix}tokens:*")))

    at = most = 0
    with gateway.job_events.inbox(claim.job_id) as read:
        for word in WORDS:
            message = f'{{"id":"{claim.job_id}","at":{at},"text":"{word}"}}'
            assert store.append_text([TextChunk(claim.job_id, claim.fencing_token, at, word, message)]) == [
                True
            ]
            part = await asyncio.wait_for(read.get(), LIMIT_S)
            assert part is not None
            assert part["at"] == at
            at += len(word)
            most = max(most, inbox.qsize())
    assert most == MAX_PARTS

    result = {"text": "".join(WORDS), "usage": {"total_tokens": len(WORDS)}}
    assert store.finish(claim.job_id, claim.fencing_token, Status.SUCCEEDED, result=result)
    assert await _rest(stream) == "".join(WORDS)
    await gateway.job_events.stop()
    gateway.close()


async def _rest(stream: AsyncGenerator[Text | Job, None]) -> str:
    text = ""
    async with asyncio.timeout(LIMIT_S):
        async for update in stream:
            if isinstance(update, Text):
                text += update.text
    return text


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():
            await asyncio.sleep(0.01)
