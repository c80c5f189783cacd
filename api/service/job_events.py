"""Waits for jobs and batches: one Redis pub/sub connection per process, with slow polling as a fallback.

Each process has channels of its own, to which the scripts tell it of the jobs that it waits for; all are told
of the end of a batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import uuid
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import redis.asyncio
from redis.asyncio.client import PubSub

from api.requests.threads import run_in_threadpool
from tasks.base.errors import StoreUnavailable
from tasks.base.redis_tls import RedisOptions
from tasks.base.settings import Settings
from tasks.records.job import TERMINAL, Job, Status
from tasks.store.database import async_client
from tasks.store.jobs import JobStore

log = logging.getLogger(__name__)

POLL_S = 2.0  # longest delay if an event is lost with the connection
RECONNECT_S = 0.5
QUIET_S = 5.0  # without a message, before Redis is asked for an answer
MOST_RECENT = 1000  # jobs told of: one may end after its record was read, and before its wait begins
MAX_PARTS = 256  # buffered for a slow client: about two seconds of the fastest generation

MISSED = None  # an update that was not received: the record and the text are read again
Update = dict[str, Any] | Status | None  # a part of a job's text, its new status, or MISSED


class Inbox:
    """The updates of a streamed job, in their order. More than MAX_PARTS become one MISSED."""

    def __init__(self) -> None:
        self._updates: deque[Update] = deque()
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        return len(self._updates)

    def put(self, update: Update) -> None:
        if len(self) >= MAX_PARTS:
            self._updates.clear()
            update = MISSED
        self._updates.append(update)
        self._arrived.set()

    async def get(self) -> Update:
        while not self._updates:
            await self.arrived()
        return self._updates.popleft()

    async def arrived(self) -> None:
        """Wait for a further update, and leave it here."""
        self._arrived.clear()
        await self._arrived.wait()

    @property
    def ended(self) -> bool:
        """Whether the job's end is among the updates, or might be."""
        others = [update for update in self._updates if not isinstance(update, dict)]
        return any(update is MISSED or update in TERMINAL for update in others)

    def parts(self) -> Iterator[dict[str, Any]]:
        """Take the parts that come before any other update."""
        while self._updates and isinstance(part := self._updates[0], dict):
            self._updates.popleft()
            yield part


class Ending(asyncio.Event):
    """Set at the end, or when the record must be read. record: of a job, as its hash, if it came along."""

    record: dict[str, str] | None = None

    async def or_after(self, seconds: float) -> None:
        """Wait until it is set, and clear it, or for `seconds`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wait(), seconds)
            self.clear()


class JobEventListener:
    """The application's lifespan calls start() and stop()."""

    def __init__(self, settings: Settings, store: JobStore) -> None:
        self.id = uuid.uuid4().hex  # by which the scripts know where somebody waits
        self._options = RedisOptions.of(settings.redis_url)
        self._store = store
        self._waiting: defaultdict[str, set[Ending]] = defaultdict(set)
        self._inboxes: defaultdict[str, set[Inbox]] = defaultdict(set)
        self._recent: OrderedDict[str, None] = OrderedDict()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._listen(), name="job-events")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def wait(self, job: Job, seconds: float) -> Job:
        """Wait until the job has ended or `seconds` have passed, and return its record. Raises JobNotFound.

        While Redis is unavailable the last known record is used: the job was accepted. A job that was created
        to be waited for here is read for the first time when it has ended.
        """
        give_up_at = time.monotonic() + seconds
        unread = self.id not in job.waiters or job.id in self._recent
        with self._awaited(job.id) as ending:
            while True:
                if unread:
                    with contextlib.suppress(StoreUnavailable):
                        job = await run_in_threadpool(self._read, job)
                left = give_up_at - time.monotonic()
                if job.terminal or left <= 0:
                    return job
                await ending.or_after(min(POLL_S, left))
                if ending.record is not None:
                    return Job.from_hash(ending.record, job.request)
                unread = True

    async def wait_for_batch(self, batch_id: str, has_ended: Callable[[], bool], seconds: float) -> None:
        """Wait until the batch has ended or `seconds` have passed. has_ended: reads it, in a thread."""
        give_up_at = time.monotonic() + seconds
        with self._awaited(batch_id) as ending:
            while not await run_in_threadpool(has_ended) and (left := give_up_at - time.monotonic()) > 0:
                await ending.or_after(min(POLL_S, left))

    @contextlib.contextmanager
    def _awaited(self, name: str) -> Iterator[Ending]:
        ending = Ending()
        self._waiting[name].add(ending)
        try:
            yield ending
        finally:
            self._waiting[name].discard(ending)
            if not self._waiting[name]:
                del self._waiting[name]

    def _read(self, job: Job) -> Job:
        return self._store.refresh(job) if self.id in job.waiters else self._store.watch(job, self.id)

    @contextlib.contextmanager
    def inbox(self, job_id: str) -> Iterator[Inbox]:
        """Receive the updates of a streamed job."""
        inbox = Inbox()
        self._inboxes[job_id].add(inbox)
        try:
            yield inbox
        finally:
            self._inboxes[job_id].discard(inbox)
            if not self._inboxes[job_id]:
                del self._inboxes[job_id]

    async def _listen(self) -> None:
        """Stay subscribed; reconnect whenever the connection breaks."""
        prefix = self._store.db.prefix
        events_channel, tokens_channel = (f"{prefix}{name}:{self.id}" for name in ("events", "tokens"))
        batches_channel = f"{prefix}batch_ends"
        while True:
            try:
                async with self._client() as client, client.pubsub() as events:
                    await events.subscribe(events_channel, tokens_channel, batches_channel)
                    self._wake_all()
                    while True:
                        message = await self._next(events)
                        if message["type"] != "message":
                            continue
                        if message["channel"] == tokens_channel:
                            self._deliver_text(message["data"])
                        elif message["channel"] == batches_channel:
                            self._wake_waiting(message["data"])
                        else:
                            self._wake(message["data"])
            except (redis.RedisError, ValueError) as error:  # a message that cannot be read is one missed
                log.debug("job events: %s", error)
            await asyncio.sleep(RECONNECT_S)

    async def _next(self, events: PubSub) -> dict[str, Any]:
        """The next message. Raises redis.TimeoutError if a quiet Redis does not answer a PING in time."""
        message: dict[str, Any] | None = await events.get_message(timeout=QUIET_S)
        if message is None:
            await events.ping()
            message = await events.get_message(timeout=self._options.timeout_s)
        if message is None:
            raise redis.TimeoutError("no answer")
        return message

    def _client(self) -> AbstractAsyncContextManager[redis.asyncio.Redis]:
        return async_client(
            self._options.address,
            decode_responses=True,
            socket_connect_timeout=self._options.timeout_s,
            socket_keepalive=True,
            **self._options.tls,
        )

    def _wake(self, data: str) -> None:
        job_id, status, *told = data.split(" ", 2)
        self._wake_waiting(job_id, json.loads(told[0]) if told else None)
        self._recent.pop(job_id, None)
        self._recent[job_id] = None
        if len(self._recent) > MOST_RECENT:
            self._recent.popitem(last=False)
        for inbox in self._inboxes.get(job_id, ()):
            inbox.put(Status(status))

    def _wake_waiting(self, name: str, record: dict[str, str] | None = None) -> None:
        for ending in self._waiting.get(name, ()):
            ending.record = record
            ending.set()

    def _wake_all(self) -> None:
        """After a (re)connect, have all records re-read: events may have been missed."""
        for waiting in self._waiting.values():
            for ending in waiting:
                ending.set()
        for inboxes in self._inboxes.values():
            for inbox in inboxes:
                inbox.put(MISSED)

    def _deliver_text(self, data: str) -> None:
        if not self._inboxes:
            return
        part = json.loads(data)
        for inbox in self._inboxes.get(part["id"], ()):
            inbox.put(part)
