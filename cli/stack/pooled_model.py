"""One model of several: what its worker does, how its load goes, and when its turn began."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from cli.stack.memory_budget import Served
from cli.stack.swap_policy import Model, Phase
from tasks.store.workers import WorkerInfo

LOAD_S = 900.0  # that loading may take, with the measuring of formats and drafts on a busy machine
LOAD_BYTES_PER_S = 10e6  # and so much more for each byte: a slow disk, or one that is shared
BUSY = ("running", "waiting")  # figures of an engine that has something to do


@dataclass(slots=True)
class PooledModel:
    """A model of the pool. refusal: why it cannot be served. lost: not even its refusals can be.

    pid: of its newest worker, which began to load at load_began. ending: why its worker is killed. log: of
    the worker. resting: its worker ended, and may not be started again yet.
    """

    served: Served
    model: Model
    refusal: str | None = None
    unservable: bool = False
    pid: int | None = None
    load_began: float = 0.0
    ending: str | None = None
    restart_paused: bool = False
    log: Path | None = None
    waiting: int = 0
    running: int = 0
    _turn_begun: bool = False  # whether it has begun

    @property
    def child(self) -> str:
        return child_name(self.served.name)

    @property
    def restart_pending(self) -> bool:
        """It takes no memory, and may not be started yet."""
        return self.restart_paused and self.model.phase is Phase.PARKED

    def mark_started(self, log: Path) -> None:
        """Its worker is started, for a turn of its own."""
        self.model = replace(self.model, phase=Phase.LOADING, waited_for_since=None)
        self.log, self._turn_begun = log, False

    def observe(
        self,
        exists: bool,
        pid: int | None,
        worker: WorkerInfo | None,
        waiting: int,
        unnamed: int,
        now: float,
    ) -> None:
        """there: whether it has a worker, be it one that is about to be restarted. worker: once it is ready.

        waiting: jobs that it is to be started for; unnamed: those that any worker may run.
        """
        phase, restarted = self.model.phase, pid not in (None, self.pid)
        if restarted:
            self.pid = pid
        if restarted or pid is None:
            self.load_began = now
        if phase is not Phase.PARKED and not exists:
            phase = Phase.PARKED
        elif phase is Phase.RUNNING and (restarted or pid is None):
            phase = Phase.LOADING  # it crashed, and keeps its memory for the restart
        elif phase is Phase.LOADING and worker is not None:
            phase = Phase.RUNNING
        begins = phase is Phase.RUNNING and not self._turn_begun  # a crash gives no second turn
        self._turn_begun |= begins
        self.waiting = waiting
        self.running = 0 if worker is None else sum(int(worker.metrics.get(name, 0)) for name in BUSY)
        idle = worker is not None and not (waiting or self.running or (unnamed and self.refusal is None))
        model = self.model
        self.model = replace(
            model,
            phase=phase,
            running_since=now if begins else model.running_since,
            waited_for_since=_since(model.waited_for_since, now)
            if phase is Phase.PARKED and waiting > 0
            else None,
            idle_since=_since(model.idle_since, now) if idle and phase is Phase.RUNNING else None,
        )

    def stuck(self, now: float) -> str | None:
        """Why its loading is hopeless, if it is."""
        load_s = LOAD_S + self.model.need / LOAD_BYTES_PER_S
        if self.model.phase is Phase.LOADING and now - self.load_began > load_s:
            return f"not loaded within {load_s:.0f} s, and its worker was killed; log: {self.log}"
        return None


def child_name(model: str) -> str:
    """Of its worker, among the services."""
    return f"worker of {model}"


def _since(then: float | None, now: float) -> float:
    return now if then is None else then
