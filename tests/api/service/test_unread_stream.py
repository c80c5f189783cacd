"""A listener that does not read, or is not told: little is kept for it, and nothing is missing at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

import pytest

from api.requests.open_requests import OpenKey
from api.service.dependencies import Gateway
from api.service.job_events import MAX_PARTS, Inbox
from api.service.job_stream import Text, follow
from tasks.base.settings import Settings
from tasks.files.factory import make_store
from tasks.records.claim import Claim
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
            assert isinstance(part, dict)
            assert part["at"] == at
            at += len(word)
            most = max(most, len(inbox))
    assert most == MAX_PARTS

    result = {"text": "".join(WORDS), "usage": {"total_tokens": len(WORDS)}}
    assert store.finish(claim.job_id, claim.fencing_token, Status.SUCCEEDED, result=result)
    assert await _rest(stream) == "".join(WORDS)
    await gateway.job_events.stop()
    gateway.close()


@contextlib.asynccontextmanager
async def _untold(
    settings: Settings, store: JobStore
) -> AsyncGenerator[tuple[Claim, AsyncGenerator[Text | Job, None], Inbox], None]:
    """A running job, a listener that has its record, and its inbox, which only the test fills."""
    gateway = Gateway(settings, make_store(settings.files))
    claim = claimed(store, queued(store, streaming=True, waiter=gateway.job_events.id))
    stream = follow(gateway, store.get(claim.job_id), OpenKey())
    assert isinstance(await anext(stream), Job)
    [inbox] = gateway.job_events._inboxes[claim.job_id]
    yield claim, stream, inbox
    await stream.aclose()
    gateway.close()


def test_who_is_told_nothing_looks_every_two_seconds(settings: Settings, store: JobStore) -> None:
    async def listen() -> None:
        async with _untold(settings, store) as (claim, stream, _):
            assert store.append_text([TextChunk(claim.job_id, claim.fencing_token, 0, "some", "{}")]) == [
                True
            ]
            async with asyncio.timeout(LIMIT_S):
                assert await anext(stream) == Text("some")
            assert store.finish(claim.job_id, claim.fencing_token, Status.SUCCEEDED, result={"text": "some."})
            assert await _rest(stream) == "."

    asyncio.run(listen())


def test_the_last_parts_are_waited_for_where_the_record_is_faster(
    settings: Settings, store: JobStore
) -> None:
    """The record is read because the job runs, and has ended when it is read."""

    async def listen() -> None:
        async with _untold(settings, store) as (claim, stream, inbox):
            assert store.finish(claim.job_id, claim.fencing_token, Status.SUCCEEDED, result={"text": "ab"})
            inbox.put(Status.RUNNING)
            following = asyncio.create_task(anext(stream))
            await asyncio.sleep(0.2)
            inbox.put({"at": 0, "text": "a", "drafts": [(0, 1, "lookup")]})
            inbox.put({"at": 1, "text": "b", "drafts": [(0, 1, "medusa")]})
            inbox.put(Status.SUCCEEDED)
            async with asyncio.timeout(LIMIT_S):
                assert await following == Text("a", (), ((0, 1, "lookup"),))
                assert await anext(stream) == Text("b", (), ((0, 1, "medusa"),))
            assert await _rest(stream) == ""

    asyncio.run(listen())


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
