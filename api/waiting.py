"""Waits for jobs to end: one pub/sub connection for the whole process, and a slow poll behind it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict

import redis.asyncio
from fastapi.concurrency import run_in_threadpool

from tasks.errors import StoreUnavailable
from tasks.job import Job
from tasks.settings import Settings
from tasks.store import JobStore

log = logging.getLogger(__name__)

POLL_S = 2.0  # an event lost with the connection costs a waiter no more than this
RECONNECT_S = 0.5


class Waiter:
    """start() and stop() belong to the application's lifespan."""

    def __init__(self, settings: Settings, store: JobStore) -> None:
        self._settings = settings
        self._store = store
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
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
                    job = await run_in_threadpool(self._store.get, job.id)
                left = give_up - time.monotonic()
                if job.terminal or left <= 0:
                    return job
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), min(POLL_S, left))
        finally:
            self._waiting[job.id].discard(ended)
            if not self._waiting[job.id]:
                del self._waiting[job.id]

    async def _listen(self) -> None:
        """Subscribe, and again whenever the connection breaks."""
        channel = f"{self._store.prefix}events"
        while True:
            try:
                async with self._client() as client, client.pubsub() as events:
                    await events.subscribe(channel)
                    async for message in events.listen():
                        if message["type"] == "message":
                            self._wake(message["data"])
            except redis.RedisError as error:
                log.debug("job events: %s", error)
            await asyncio.sleep(RECONNECT_S)

    def _client(self) -> redis.asyncio.Redis:
        client: redis.asyncio.Redis = redis.asyncio.Redis.from_url(
            self._settings.redis_url,
            decode_responses=True,
            socket_connect_timeout=self._settings.redis_timeout_s,
            socket_keepalive=True,
        )
        return client

    def _wake(self, data: str) -> None:
        job_id, _, _status = data.partition(" ")
        for ended in self._waiting.get(job_id, ()):
            ended.set()
