"""What the routes share: the stores, the publisher, the waiter and a short-lived view of the workers."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from api.requests.open_requests import OpenRequests
from api.requests.threads import FileThreads, run_in_threadpool
from api.service.job_events import Waiter
from api.service.model_routing import View
from tasks.base.errors import JobNotFound, StoreUnavailable
from tasks.base.settings import Settings
from tasks.base.telemetry.tracing import UNTRACED, Tracing
from tasks.batches.store import BatchStore
from tasks.broker.publisher import Outbox, Publisher
from tasks.files.base import FileStore
from tasks.files.manager import FileManager
from tasks.files.records import FileRecords
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tasks.store.workers import Registry, WorkerInfo
from tasks.webhooks.ssrf_guard import Guard
from tasks.webhooks.store import DeliveryStore

log = logging.getLogger(__name__)

# /readyz asks for no key: however many ask it, Redis is asked as often as this.
READY_AGE_S = 0.5
UNREADY_AGE_S = 0.1  # while something is missing, or Redis: whoever waits for it learns of it soon
WORKERS_AGE_S = 1.0  # a submission may be checked against workers seen this long ago

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Readiness:
    """What was seen at a time of the monotonic clock. error: why nothing could be seen."""

    at: float
    view: View = field(default_factory=View)
    has_leader: bool = False
    error: str = ""

    @property
    def valid_s(self) -> float:
        return READY_AGE_S if self.view.served and self.has_leader else UNREADY_AGE_S


class Gateway:
    """One per application, made in its event loop."""

    def __init__(self, settings: Settings, objects: FileStore, tracing: Tracing = UNTRACED) -> None:
        self.settings = settings
        self.tracing = tracing
        self.store = JobStore(settings)
        database = self.store.db
        self.keys = KeyStore(database)
        self.open_requests = OpenRequests(self.keys)
        self.files = FileManager(objects, FileRecords(database))
        self._file_threads = FileThreads()
        self._publisher = Publisher.connect(settings)
        self.outbox = Outbox(self._publisher)
        self.waiter = Waiter(settings, self.store)
        self.batches = BatchStore(database)
        self.deliveries = DeliveryStore(database, settings)
        self.guard = Guard.of(settings)
        self._registry = Registry(database, settings.worker_ttl_s)
        self.awaited: set[str] = set()  # jobs whose only reason is a request under way
        self._cancelling: set[asyncio.Task[None]] = set()
        self._seen: tuple[float, View] = (float("-inf"), View())
        self._ready_lock = threading.Lock()
        self._ready = _Readiness(float("-inf"))

    def view(self, max_age_s: float = 0.0) -> View:
        """The live workers and the models; raises StoreUnavailable."""
        at, seen = self._seen
        if time.monotonic() - at > max_age_s:
            registry = self._registry
            seen = View(registry.live(), registry.announced(), registry.seen())
            self._seen = (time.monotonic(), seen)
        return seen

    def readiness(self) -> tuple[View, bool]:
        """The same, and whether an io worker leads, as seen a moment ago.

        Anybody may ask, without a key, so one thread looks at a time. Raises StoreUnavailable.
        """
        with self._ready_lock:
            ready = self._ready
            if time.monotonic() - ready.at > ready.valid_s:
                self._ready = ready = self._look()
        if ready.error:
            raise StoreUnavailable(ready.error)
        return ready.view, ready.has_leader

    def _look(self) -> _Readiness:
        try:
            view, has_leader = self.view(), self.batches.has_leader()
        except StoreUnavailable as error:
            return _Readiness(time.monotonic(), error=str(error))
        return _Readiness(time.monotonic(), view, has_leader)

    def workers(self, max_age_s: float = 0.0) -> Sequence[WorkerInfo]:
        """The live workers; raises StoreUnavailable."""
        return self.view(max_age_s).workers

    async def in_file_thread(self, call: Callable[[], T], *, abandon: bool = False) -> T:
        """What may wait for the file store, off the event loop. abandon: left to itself when cancelled."""
        return await self._file_threads.run(call, abandon=abandon)

    def served(self, max_age_s: float = WORKERS_AGE_S) -> str | None:
        """The model that answers where none is asked for; None unless the live workers have just one."""
        models = {worker.model for worker in self.workers(max_age_s)}
        return models.pop() if len(models) == 1 else None

    def cancel_soon(self, job_ids: Collection[str]) -> None:
        """Cancel jobs whose answer nobody waits for any more, without waiting for it."""
        if job_ids:
            task = asyncio.create_task(run_in_threadpool(self.cancel, tuple(job_ids)))
            self._cancelling.add(task)
            task.add_done_callback(self._cancelling.discard)

    async def abandon(self) -> None:
        """Cancel all that is awaited: nobody will be answered any more."""
        self.cancel_soon(self.awaited)
        while self._cancelling:
            await asyncio.gather(*self._cancelling)

    def cancel(self, job_ids: Collection[str]) -> None:
        """Cancel jobs one after the other, until Redis fails: the rest end by their deadlines."""
        for job_id in job_ids:
            try:
                self.store.cancel(job_id)
            except JobNotFound:
                pass
            except StoreUnavailable as error:
                log.warning("%s, and what is cancelled with it, goes on to its deadline: %s", job_id, error)
                return

    def close(self) -> None:
        self.outbox.close()
        self._publisher.close()
        self.files.objects.close()
        self.store.close()


async def _gateway(request: Request) -> Gateway:  # async: FastAPI would call a plain function on a thread
    gateway: Gateway = request.app.state.gateway
    return gateway


GatewayDep = Annotated[Gateway, Depends(_gateway)]
