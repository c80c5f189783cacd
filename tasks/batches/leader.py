"""Works on batches: one io worker leads, the others stand by, and take over when it falls silent.

Each round looks at all that is to be done in one call, then sends, collects, and starts what takes longer
(reading a file, writing the output) on threads of its own, where owners take turns. Where the file store is
slow, a round does less. Whatever is stopped in the middle is done again by the next leader.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial

import redis
from prometheus_client import Histogram

from tasks.base.errors import BatchRefused, FileStoreUnavailable, LeadLost, ObjectMissing, StoreUnavailable
from tasks.base.settings import Settings
from tasks.base.telemetry.metrics import REGISTRY
from tasks.batches.capacity import Capacity
from tasks.batches.collector import Collector
from tasks.batches.cooldown import Cooldown
from tasks.batches.dispatcher import Dispatcher
from tasks.batches.fair_share import in_turns
from tasks.batches.finalizer import Finalizer
from tasks.batches.ingest import Ingest
from tasks.batches.segments import objects_left, remove_all
from tasks.batches.store import BatchStore
from tasks.batches.time_slicing import Steps, TimeSlicer
from tasks.files.manager import FileManager
from tasks.records.batch import Ending
from tasks.records.batch_work import Active
from tasks.records.ids import WINDOW
from tasks.store.jobs import JobStore
from tasks.store.windows import WindowStore
from tasks.store.workers import Registry, WorkerInfo

log = logging.getLogger(__name__)

ROUND_S = 0.05  # shortest time between two rounds: a round costs the machine a few milliseconds
IDLE_S = 0.5  # longest, when nothing wakes it
STANDBY_S = 1.0  # between two tries to take the lead
WORKERS_AGE_S = 2.0
RENEW_S = 1.0  # between renewals of the lead, which lasts five times as long
LONGEST_ROUND_S = 60.0  # one that takes longer is taken to hang, and another io worker may lead
FILES_S = 0.2  # of a round: after that it begins to read no further chunk, and to write no further part
INTERACTIVE_AHEAD_S = 0.2  # of work that is sent ahead at most: it adds so much to a wait
WINDOWS_AHEAD = 2  # of lines of batches, for each worker: one that runs, and the next
BULK_AHEAD_S = 0.5  # rounds beside hundreds of batches are that far apart
END_AGAIN_S = 5.0  # between two ends of the windows of a batch that ends early: Redis may forget one
RETRY_S = 2.0  # after a store was away, or a batch met an error
CLEANING = "cleaning up"  # in the place of an owner: a turn like anybody's, however many batches have ended
INTERNAL = "an internal error, which the io worker's log describes"
ROUND_SECONDS = Histogram(
    "medusaq_batch_round_seconds",
    "One round over all batches by the leading io worker",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60),
    registry=REGISTRY,
)


class BatchLeader:
    """start() and stop() belong to the io worker's life."""

    def __init__(self, settings: Settings, store: JobStore, keeper: FileManager) -> None:
        self._jobs = store
        self._files = files = keeper.objects
        self._cooldown = Cooldown(RETRY_S)
        self._token = uuid.uuid4().hex
        self._batches = BatchStore(store.db)
        self._registry = Registry(store.db, settings.worker_ttl_s)
        self._workers: tuple[float, list[WorkerInfo]] = (float("-inf"), [])
        self._windows = WindowStore(store.db)
        self._dispatcher = Dispatcher(self._batches, self._windows, files, self._token, self._cooldown)
        self._interactive = Capacity(fills=1, most_s=INTERACTIVE_AHEAD_S)
        self._bulk = Capacity(fills=2, most_s=BULK_AHEAD_S, windows=WINDOWS_AHEAD)
        self._collector = Collector(self._batches, store.db.scripts, files, self._token)
        self._ingest = Ingest(files, self._batches, settings, self._token)
        self._finalizer = Finalizer(keeper, self._batches, self._token)
        self._slicer = TimeSlicer(self._attempt)
        self._seen: set[str] = set()  # batches that were active in the last round,
        self._advanced: dict[str, float] = {}  # when each had its turn, on the monotonic clock,
        self._ended_early: dict[str, float] = {}  # and when its windows were ended, of one that ends early
        self._pubsub: redis.client.PubSub | None = None
        self._stopping = threading.Event()
        self._left_over = False  # the last round ended before it was through
        self._round_began = float("-inf")  # on the monotonic clock
        self._running = [
            threading.Thread(target=target, name=name, daemon=True)
            for target, name in ((self._loop, "batches"), (self._keep_lead, "lead"))
        ]

    def start(self) -> None:
        for thread in self._running:
            thread.start()

    def stop(self) -> None:
        """End once the current round has done with the batch it is at, and let another lead."""
        self._stopping.set()
        for thread in self._running:
            if thread.is_alive():
                thread.join()
        self._slicer.stop()
        self._resign()

    def _resign(self) -> None:
        try:
            self._batches.resign(self._token)
        except StoreUnavailable as error:
            log.warning("the lead runs out by itself: %s", error)

    # The loop

    def _loop(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            self._round_began = time.monotonic()
            try:
                leads = self.run_round()
                pause = STANDBY_S if not leads else 0.0 if self._left_over else self._wait_for_work()
            except LeadLost as error:
                log.warning("batches: %s", error)
                pause = STANDBY_S
            except StoreUnavailable as error:
                log.warning("batches wait: %s", error)
                pause = RETRY_S
            except Exception:
                log.exception("a round over the batches failed: another io worker may lead")
                self._resign()
                pause = RETRY_S

    def _keep_lead(self) -> None:
        """While a round takes long, as with a slow file store, but not for ever."""
        while not self._stopping.wait(RENEW_S):
            if time.monotonic() - self._round_began > LONGEST_ROUND_S:
                continue
            try:
                self._batches.renew(self._token)
            except (LeadLost, StoreUnavailable) as error:
                log.debug("batches: %s", error)

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

    def _wakes(self) -> redis.client.PubSub:
        if self._pubsub is None:
            self._pubsub = self._jobs.db.redis.pubsub(ignore_subscribe_messages=True)
            self._pubsub.subscribe(f"{self._jobs.db.prefix}wake")
        return self._pubsub

    def run_round(self) -> bool:
        """Take or keep the lead, then send, collect, and start reading or finalizing. False if another leads.

        Raises LeadLost and StoreUnavailable; an error of one batch stops no other.
        """
        began = time.monotonic()
        workers = self._live()
        bulk = self._bulk.update(workers)
        interactive = self._interactive.update(workers, waiting=self._bulk.in_flight)
        work = self._batches.lead(self._token, bulk, interactive)
        if work is None:
            return False
        self._dispatcher.send_interactive(work, self._interactive)
        for active in work.active:
            self._cooldown.attempt(active.batch.id, partial(self._end_early, active, work.now))
        self._dispatcher.send(work, self._bulk, FILES_S)
        until = time.monotonic() + FILES_S
        self._left_over = False
        for active in in_turns(sorted(work.active, key=self._last_turn), lambda a: a.batch.owner):
            if self._stopping.is_set():
                break
            self._cooldown.attempt(active.batch.id, partial(self._advance, active, work.now))
            self._advanced[active.batch.id] = time.monotonic()
            if time.monotonic() > until:
                self._left_over = True
                break
        for batch_id in work.cleanup:
            self._begin(f"cleaning up after {batch_id}", CLEANING, self._cleanup_steps(batch_id))
        self._forget({active.batch.id for active in work.active})
        ROUND_SECONDS.observe(time.monotonic() - began)
        return True

    def _end_early(self, active: Active, now: float) -> None:
        batch = active.batch
        if not batch.ending and batch.expires_at <= now:
            self._batches.stop(batch.id, Ending.EXPIRED)
        if batch.ending and time.monotonic() - self._ended_early.get(batch.id, float("-inf")) > END_AGAIN_S:
            for work_id in self._batches.live(batch.id):
                if WINDOW.matches(work_id):
                    self._windows.end_queued(work_id)
                elif batch.ending is Ending.CANCELLED:  # a line that an earlier release sent as a job
                    self._jobs.cancel(work_id)
            self._ended_early[batch.id] = time.monotonic()

    def _last_turn(self, active: Active) -> float:
        return self._advanced.get(active.batch.id, float("-inf"))

    def _advance(self, active: Active, now: float) -> None:
        batch = active.batch
        collected = self._collector.collect(active, now)
        if not batch.validated:
            self._begin(f"reading of {batch.id}", batch.owner, self._reading_steps(batch.id))
        elif batch.nothing_to_send and not active.live and collected == active.uncollected:
            over = bool(batch.ending) or batch.expires_at <= now
            self._begin(f"finalizing of {batch.id}", batch.owner, self._finalizing_steps(batch.id, over=over))

    def _forget(self, active: set[str]) -> None:
        for gone in self._seen - active:
            self._ended_early.pop(gone, None)
            self._advanced.pop(gone, None)
            self._collector.forget(gone)
        self._seen = active

    # What takes longer

    def _begin(self, what: str, owner: str, steps: Steps) -> None:
        if not self._cooldown.is_active(what):
            self._slicer.begin(what, owner, steps)

    def _attempt(self, what: str, work: Callable[[], bool]) -> bool | None:
        try:
            return self._cooldown.attempt(what, work)
        except (LeadLost, StoreUnavailable) as error:
            log.warning("%s waits: %s", what, error)
            return None

    def _reading_steps(self, batch_id: str) -> Steps:
        try:
            yield from self._ingest.run(batch_id)
            return
        except (LeadLost, StoreUnavailable, FileStoreUnavailable):
            raise
        except BatchRefused as error:
            log.info("%s: %s", batch_id, error)
            code, message = error.code, str(error)
        except ObjectMissing as error:
            code, message = "file_not_found", str(error)
        except Exception:
            log.exception("%s cannot be read", batch_id)
            code, message = "internal_error", INTERNAL
        self._batches.fail(self._token, batch_id, code, message)

    def _finalizing_steps(self, batch_id: str, *, over: bool) -> Steps:
        """over: its time has passed, or it was cancelled. Before that, what is missing may come back."""
        try:
            yield from self._finalizer.run(batch_id)
        except ObjectMissing as error:
            if not over:
                raise
            self._batches.fail(self._token, batch_id, "object_missing", str(error))

    def _cleanup_steps(self, batch_id: str) -> Steps:
        yield from remove_all(self._files, batch_id)
        clean = False
        try:  # one who was slow may have written again, and noted it just before `cleaned`
            self._batches.cleaned(batch_id)
            clean = not objects_left(self._files, batch_id)
        finally:
            if not clean:
                self._batches.not_cleaned(batch_id)

    def _live(self) -> list[WorkerInfo]:
        at, seen = self._workers
        if not seen or time.monotonic() - at > WORKERS_AGE_S:  # the first worker is seen at once
            seen = self._registry.live()
            self._workers = time.monotonic(), seen
        return seen
