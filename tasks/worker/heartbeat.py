"""The heartbeat of a model worker: one thread that renews leases, cancels and requeues jobs and windows.

Each beat is one Lua call for all that runs. The same thread keeps the worker in the registry and, after
SIGTERM, gives what did not finish in time to other workers.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tasks.base.errors import StoreUnavailable
from tasks.base.settings import Settings
from tasks.records.claim import Claim
from tasks.records.job import Priority
from tasks.store.jobs import Beat, JobStore
from tasks.store.workers import Registry, WorkerInfo

log = logging.getLogger(__name__)

TAKES_TURNS = "MEDUSAQ_TAKES_TURNS"  # variable of a worker whose memory other models wait for


class Held(Protocol):
    """What this worker has claimed. disowned: the claim is lost, so no result is written."""

    disowned: bool
    cancelled: bool

    @property
    def id(self) -> str: ...

    @property
    def fencing_token(self) -> int: ...

    def stop(self) -> None:
        """End it in the engine: it has become disowned or cancelled."""

    def hand_back(self) -> bool:
        """Queue it again; False: it is not ours any more, or it was cancelled. Raises StoreUnavailable."""


@dataclass(eq=False, slots=True)
class RunningJob:
    """A claimed job in the engine under `request_id`. streaming: its text is published as it comes.

    cancel: ends a request in the engine.
    """

    claim: Claim
    request_id: str
    store: JobStore
    cancel: Callable[[str], object]
    disowned: bool = False
    cancelled: bool = False
    streaming: bool = False

    @property
    def id(self) -> str:
        return self.claim.job_id

    @property
    def fencing_token(self) -> int:
        return self.claim.fencing_token

    @property
    def given_up(self) -> bool:
        return self.disowned or self.cancelled

    def stop(self) -> None:
        self.cancel(self.request_id)

    def hand_back(self) -> bool:
        return self.store.requeue(self.id, self.fencing_token)


class Heartbeat:
    """Start once with start(), end with stop(). drain() may be called from a signal handler."""

    def __init__(
        self,
        settings: Settings,
        store: JobStore,
        registry: Registry,
        worker_id: str,
        describe: Callable[[], WorkerInfo],
        start_stream: Callable[[RunningJob], bool],
    ) -> None:
        """start_stream begins to publish a job's text; False: it is not in the engine (yet)."""
        self._settings = settings
        self._store = store
        self._registry = registry
        self._describe = describe
        self._start_stream = start_stream
        self._running: set[Held] = set()
        self._lock = threading.Lock()
        self._drain_at: float | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="heartbeat", daemon=True)
        self._worker_id = worker_id

    def start(self) -> None:
        """Begin to beat; the first beat comes at once."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and leave the registry."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        with contextlib.suppress(StoreUnavailable):  # the entry dies by itself
            self._registry.leave(self._worker_id)

    def drain(self, within_s: float | None = None) -> None:
        """Take nothing new, and hand back what still runs after so long; None is drain_s. The shortest time
        of several holds. Only sets a number: signal-safe.
        """
        until = time.monotonic() + (self._settings.drain_s if within_s is None else within_s)
        self._drain_at = until if self._drain_at is None else min(self._drain_at, until)

    @property
    def draining(self) -> bool:
        return self._drain_at is not None

    @property
    def drained(self) -> bool:
        """The time that running jobs had to finish is over."""
        return self._drain_at is not None and time.monotonic() >= self._drain_at

    def pause(self, seconds: float) -> bool:
        """Sleep, and say whether the worker may still wait for Redis to return."""
        self._stopping.wait(seconds)
        return not self.drained

    def add(self, running: Held) -> None:
        with self._lock:
            self._running.add(running)

    def remove(self, running: Held) -> None:
        with self._lock:
            self._running.discard(running)

    def jobs_running(self, priority: Priority) -> int:
        """Jobs of that priority that this worker has claimed, lines of windows not among them."""
        with self._lock:
            jobs = [running for running in self._running if isinstance(running, RunningJob)]
        return sum(job.claim.priority is priority for job in jobs)

    def _loop(self) -> None:
        away = False
        while True:
            try:
                self._beat()
                self._registry.refresh(self._describe())
            except StoreUnavailable as error:
                if not away:
                    log.warning("heartbeat failed, running jobs go on: %s", error)
                away = True
            except Exception:
                log.exception("heartbeat failed")
            else:
                if away:
                    log.warning("heartbeat: Redis is back")
                away = False
            if self._stopping.wait(self._settings.heartbeat_s):
                return

    def _beat(self) -> None:
        with self._lock:
            held = [running for running in self._running if not running.disowned]
        if not held:
            return
        if self.drained:
            for running in held:
                self._hand_back(running)
            return
        answers = self._store.heartbeat([(running.id, running.fencing_token) for running in held])
        for running, answer in zip(held, answers, strict=True):
            if answer is Beat.STREAMING and isinstance(running, RunningJob) and not running.streaming:
                running.streaming = self._start_stream(running)
            if answer in (Beat.OK, Beat.STREAMING):
                if not isinstance(running, RunningJob):  # Redis has forgotten that
                    running.cancelled = False
                continue
            running.disowned, running.cancelled = answer is Beat.LOST, answer is Beat.CANCEL
            running.stop()

    def _hand_back(self, running: Held) -> None:
        try:
            if running.hand_back():
                log.warning("handed back %s, unfinished while shutting down", running.id)
        except StoreUnavailable as error:
            log.warning("could not hand back %s, its lease will run out: %s", running.id, error)
        finally:
            running.disowned = True
            running.stop()
