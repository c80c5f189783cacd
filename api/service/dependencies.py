"""The objects that the routes share: stores, job events and a cached view of the workers."""

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
from api.requests.table_downloads import TableDownloads
from api.requests.threads import FileThreads, run_in_threadpool
from api.service.job_events import JobEventListener
from api.service.model_routing import View
from tasks.base.errors import JobNotFound, StoreUnavailable
from tasks.base.settings import Settings
from tasks.base.telemetry.tracing import UNTRACED, Tracing
from tasks.batches.store import BatchStore
from tasks.files.base import FileStore
from tasks.files.manager import FileManager
from tasks.files.records import FileRecords
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tasks.store.workers import Registry, WorkerInfo
from tasks.webhooks.ssrf_guard import Guard
from tasks.webhooks.store import DeliveryStore

log = logging.getLogger(__name__)

# /readyz needs no key, so its result is cached to limit the load on Redis.
READY_AGE_S = 0.5
UNREADY_AGE_S = 0.1  # shorter, since clients poll until the system is ready
WORKERS_AGE_S = 1.0  # oldest view of the workers that submissions are checked against

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Readiness:
    """A cached readiness check. at: on the monotonic clock. error: the failure, if Redis is unavailable."""

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
        self.table_downloads = TableDownloads()
        self.job_events = JobEventListener(settings, self.store)
        self.batches = BatchStore(database)
        self.deliveries = DeliveryStore(database, settings)
        self.guard = Guard.of(settings)
        self._registry = Registry(database, settings.worker_ttl_s)
        self.awaited: set[str] = set()  # jobs of online requests in flight
        self._cancelling: set[asyncio.Task[None]] = set()
        self._seen: tuple[float, View] = (float("-inf"), View())
        self._ready_lock = threading.Lock()
        self._ready = _Readiness(float("-inf"))

    def view(self, max_age_s: float = 0.0) -> View:
        """The live workers and the models, cached for up to max_age_s. Raises StoreUnavailable."""
        at, seen = self._seen
        if time.monotonic() - at > max_age_s:
            registry = self._registry
            seen = View(registry.live(), registry.announced(), registry.seen())
            self._seen = (time.monotonic(), seen)
        return seen

    def readiness(self) -> tuple[View, bool]:
        """The view, and whether an io worker is the leader, both cached briefly.

        /readyz needs no key, so only one thread queries Redis at a time. Raises StoreUnavailable.
        """
        with self._ready_lock:
            ready = self._ready
            if time.monotonic() - ready.at > ready.valid_s:
                self._ready = ready = self._read_readiness()
        if ready.error:
            raise StoreUnavailable(ready.error)
        return ready.view, ready.has_leader

    def _read_readiness(self) -> _Readiness:
        try:
            view, has_leader = self.view(), self.batches.has_leader()
        except StoreUnavailable as error:
            return _Readiness(time.monotonic(), error=str(error))
        return _Readiness(time.monotonic(), view, has_leader)

    def workers(self, max_age_s: float = 0.0) -> Sequence[WorkerInfo]:
        """The live workers; raises StoreUnavailable."""
        return self.view(max_age_s).workers

    async def in_file_thread(self, call: Callable[[], T], *, abandon: bool = False) -> T:
        """Run a call to the file store on a thread. abandon: on cancellation, leave it running and return."""
        return await self._file_threads.run(call, abandon=abandon)

    def served(self, max_age_s: float = WORKERS_AGE_S) -> str | None:
        """The only model of the live workers, or None if there are zero or several."""
        models = {worker.model for worker in self.workers(max_age_s)}
        return models.pop() if len(models) == 1 else None

    def cancel_soon(self, job_ids: Collection[str]) -> None:
        """Cancel jobs in the background."""
        if job_ids:
            task = asyncio.create_task(run_in_threadpool(self.cancel, tuple(job_ids)))
            self._cancelling.add(task)
            task.add_done_callback(self._cancelling.discard)

    async def abandon(self) -> None:
        """Cancel the jobs of all online requests, at shutdown."""
        self.cancel_soon(self.awaited)
        while self._cancelling:
            await asyncio.gather(*self._cancelling)

    def cancel(self, job_ids: Collection[str]) -> None:
        """Cancel jobs one by one. Stops if Redis fails: the rest expire at their deadlines."""
        for job_id in job_ids:
            try:
                self.store.cancel(job_id)
            except JobNotFound:
                pass
            except StoreUnavailable as error:
                log.warning(
                    "could not cancel %s and the jobs after it; they run until their deadlines: %s",
                    job_id,
                    error,
                )
                return

    def close(self) -> None:
        self.files.objects.close()
        self.store.close()


async def _gateway(request: Request) -> Gateway:  # async: FastAPI would run a plain function on a thread
    gateway: Gateway = request.app.state.gateway
    return gateway


GatewayDep = Annotated[Gateway, Depends(_gateway)]
