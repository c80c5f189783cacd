"""Works on batches: one io worker leads, the others stand by, and take over when it falls silent.

Each round looks at all that is to be done in one call, then sends, collects, and starts what takes longer
(reading a file, writing the output) on threads of its own. Whatever is stopped in the middle is done again by
the next leader.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import redis

from tasks.batch import Batch, Ending
from tasks.batches import Active, BatchStore, Work
from tasks.collect import Collector
from tasks.dispatch import Dispatcher, room_for
from tasks.errors import BatchRefused, FileStoreUnavailable, LeadLost, ObjectMissing, StoreUnavailable
from tasks.file_keeper import FileKeeper
from tasks.finalise import Finaliser
from tasks.ingest import Ingest
from tasks.publish import Publisher
from tasks.registry import Registry, WorkerInfo
from tasks.settings import Settings
from tasks.store import JobStore

log = logging.getLogger(__name__)

ROUND_S = 0.05  # shortest time between two rounds: a round costs the machine a few milliseconds
IDLE_S = 0.5  # longest, when nothing wakes it; the lead lasts ten times as long
STANDBY_S = 1.0  # between two tries to take the lead
WORKERS_AGE_S = 2.0
RETRY_S = 5.0  # after a store was away
JOBS = 2  # files read or written at once
INTERNAL = "an internal error, which the io worker's log describes"


class BatchDriver:
    """start() and stop() belong to the io worker's life."""

    def __init__(self, settings: Settings, store: JobStore, publisher: Publisher, keeper: FileKeeper) -> None:
        self._settings, self._store = settings, store
        files = keeper.objects
        self._token = uuid.uuid4().hex
        self._batches = BatchStore(store)
        self._registry = Registry(store, settings.worker_ttl_s)
        self._workers: tuple[float, list[WorkerInfo]] = (float("-inf"), [])
        self._dispatcher = Dispatcher(self._batches, files, publisher, settings, self._token)
        self._collector = Collector(self._batches, files, self._token)
        self._ingest = Ingest(files, self._batches, settings, self._token)
        self._finaliser = Finaliser(keeper, self._batches, self._token)
        self._threads = ThreadPoolExecutor(JOBS, thread_name_prefix="batch")
        self._busy: dict[str, Future[None]] = {}
        self._cancelled: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="batches", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the current round, and let another lead."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._threads.shutdown(wait=False, cancel_futures=True)
        try:
            self._batches.resign(self._token)
        except StoreUnavailable as error:
            log.warning("the lead runs out by itself: %s", error)

    # The loop

    def _loop(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            try:
                pause = self._wait_for_work() if self.round() else STANDBY_S
            except LeadLost as error:
                log.warning("batches: %s", error)
                pause = STANDBY_S
            except (StoreUnavailable, FileStoreUnavailable) as error:
                log.warning("batches wait: %s", error)
                pause = RETRY_S
            except Exception:
                log.exception("a round over the batches failed")
                pause = RETRY_S

    def _wait_for_work(self) -> float:
        """Until something wakes us, at most IDLE_S; then the rest of ROUND_S."""
        began = time.monotonic()
        try:
            self._wakes().get_message(timeout=IDLE_S)
            while self._wakes().get_message(timeout=0):
                pass
        except redis.RedisError as error:
            log.debug("batches: %s", error)
            self._pubsub = None
            return IDLE_S
        return max(0.0, ROUND_S - (time.monotonic() - began))

    _pubsub: redis.client.PubSub | None = None

    def _wakes(self) -> redis.client.PubSub:
        if self._pubsub is None:
            self._pubsub = self._store.redis.pubsub(ignore_subscribe_messages=True)
            self._pubsub.subscribe(f"{self._store.prefix}wake")
        return self._pubsub

    def round(self) -> bool:
        """Whether we lead. Raises LeadLost and what the stores raise."""
        workers = self._live()
        room = room_for(workers, self._settings.worker_lookahead)
        work = self._batches.lead(self._token, room)
        if work is None:
            return False
        for active in work.active:
            self._one(active, work)
        for gone in self._busy.keys() - {active.batch.id for active in work.active}:
            del self._busy[gone]
            self._cancelled.discard(gone)
            self._collector.forget(gone)
        self._dispatcher.send(work, room)
        return True

    def _one(self, active: Active, work: Work) -> None:
        batch = active.batch
        if not batch.ending and batch.expires_at <= work.now:
            self._batches.end(batch.id, Ending.EXPIRED)
        if batch.ending is Ending.CANCELLED and batch.id not in self._cancelled:
            for job_id in self._batches.live_jobs(batch.id):
                self._store.cancel(job_id)
            self._cancelled.add(batch.id)
        self._collector.collect(active, work.now)
        if not batch.validated:
            self._begin(batch, self._ingest.run)
        elif batch.all_sent and not active.live and not active.ended:
            self._begin(batch, self._finaliser.run)

    # What takes longer

    def _begin(self, batch: Batch, work: Callable[[Batch], None]) -> None:
        """On a thread, unless one is at this batch already."""
        running = self._busy.get(batch.id)
        if running is None or running.done():
            self._busy[batch.id] = self._threads.submit(self._guarded, batch, work)

    def _guarded(self, batch: Batch, work: Callable[[Batch], None]) -> None:
        try:
            work(batch)
        except BatchRefused as error:
            log.info("%s: %s", batch.id, error)
            self._finaliser.fail(batch, error.code, str(error))
        except ObjectMissing as error:
            self._finaliser.fail(batch, "file_not_found", str(error))
        except (LeadLost, StoreUnavailable, FileStoreUnavailable) as error:
            log.warning("%s waits: %s", batch.id, error)
            self._stopping.wait(RETRY_S)
        except Exception:
            log.exception("%s cannot be worked on", batch.id)
            self._finaliser.fail(batch, "internal_error", INTERNAL)

    def _live(self) -> list[WorkerInfo]:
        at, seen = self._workers
        if not seen or time.monotonic() - at > WORKERS_AGE_S:  # the first worker is seen at once
            seen = self._registry.live()
            self._workers = time.monotonic(), seen
        return seen
