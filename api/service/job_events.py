"""Hears of jobs: one pub/sub connection for the whole process, and a slow poll behind it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import redis.asyncio

from api.requests.threads import run_in_threadpool
from tasks.base.errors import StoreUnavailable
from tasks.base.redis_tls import RedisOptions
from tasks.base.settings import Settings
from tasks.records.job import Job
from tasks.store.client import async_client
from tasks.store.jobs import JobStore

log = logging.getLogger(__name__)

POLL_S = 2.0  # an event lost with the connection costs a waiter no more than this
RECONNECT_S = 0.5
MAX_PARTS = 256  # of a client that does not read: about two seconds of the fastest answers

Inbox = asyncio.Queue[dict[str, Any] | None]  # parts of a job's text; None: look at its record


class Waiter:
    """start() and stop() belong to the application's lifespan."""

    def __init__(self, settings: Settings, store: JobStore) -> None:
        self._settings = settings
        self._store = store
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._inboxes: defaultdict[str, set[Inbox]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._listen(), name="job-events")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def wait(self, job: Job, seconds: float) -> Job:
        """The record once it is terminal, or as it stands after `seconds`. Raises JobNotFound.

        With Redis away the record last seen is returned: the job was accepted.
        """
        give_up = time.monotonic() + seconds
        ended = asyncio.Event()
        self._waiting[job.id].add(ended)
        try:
            while True:
                with contextlib.suppress(StoreUnavailable):
                    job = await run_in_threadpool(self._store.refresh, job)
                left = give_up - time.monotonic()
                if job.terminal or left <= 0:
                    return job
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), min(POLL_S, left))
                    ended.clear()
        finally:
            self._waiting[job.id].discard(ended)
            if not self._waiting[job.id]:
                del self._waiting[job.id]

    @contextlib.contextmanager
    def inbox(self, job_id: str) -> Iterator[Inbox]:
        """The updates of a watched job from now on, MAX_PARTS at most: beyond that its record has them."""
        made: Inbox = asyncio.Queue(MAX_PARTS)
        self._inboxes[job_id].add(made)
        try:
            yield made
        finally:
            self._inboxes[job_id].discard(made)
            if not self._inboxes[job_id]:
                del self._inboxes[job_id]

    async def _listen(self) -> None:
        """Subscribe, and again whenever the connection breaks."""
        events_channel, tokens_channel = (f"{self._store.db.prefix}{name}" for name in ("events", "tokens"))
        while True:
            try:
                async with self._client() as client, client.pubsub() as events:
                    await events.subscribe(events_channel, tokens_channel)
                    self._wake_all()
                    async for message in events.listen():
                        if message["type"] != "message":
                            continue
                        if message["channel"] == tokens_channel:
                            self._hand_out(message["data"])
                        else:
                            self._wake(message["data"])
            except redis.RedisError as error:
                log.debug("job events: %s", error)
            await asyncio.sleep(RECONNECT_S)

    def _client(self) -> AbstractAsyncContextManager[redis.asyncio.Redis]:
        options = RedisOptions.of(self._settings.redis_url)
        return async_client(
            options.address,
            decode_responses=True,
            socket_connect_timeout=options.timeout_s,
            socket_keepalive=True,
            **options.tls,
        )

    def _wake(self, data: str) -> None:
        job_id, _, _status = data.partition(" ")
        for ended in self._waiting.get(job_id, ()):
            ended.set()
        for inbox in self._inboxes.get(job_id, ()):
            _put(inbox, None)

    def _wake_all(self) -> None:
        """Something may have been said while nobody heard it."""
        for inboxes in self._inboxes.values():
            for inbox in inboxes:
                _put(inbox, None)

    def _hand_out(self, data: str) -> None:
        if not self._inboxes:
            return
        part = json.loads(data)
        for inbox in self._inboxes.get(part["id"], ()):
            _put(inbox, part)


def _put(inbox: Inbox, part: dict[str, Any] | None) -> None:
    """A full inbox is emptied first: the text so far and the record have what was in it."""
    if inbox.full():
        while not inbox.empty():
            inbox.get_nowait()
        part = None
    inbox.put_nowait(part)
