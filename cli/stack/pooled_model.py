"""One model of a pool: the state of its worker, and the times that swap_policy.py needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from cli.stack.memory_budget import Served
from cli.stack.swap_policy import Model, Phase
from tasks.store.workers import WorkerInfo

LOAD_S = 900.0  # load timeout, including measurements on a busy machine
LOAD_BYTES_PER_S = 10e6  # slowest expected disk, by which the timeout grows with the size
BUSY = ("running", "waiting")  # metrics that count an engine's requests


@dataclass(slots=True)
class PooledModel:
    """A model of the pool. refusal: why it cannot be served, so that its jobs fail. unservable: even the
    worker that fails its jobs cannot run.

    pid: of its newest worker, which began to load at load_began. ending: why its worker is killed. log: of
    the worker. restart_paused: its worker ended, and waits for its restart.
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
    _turn_begun: bool = False  # since the last start

    @property
    def child(self) -> str:
        return child_name(self.served.name)

    @property
    def restart_pending(self) -> bool:
        """Whether it is parked and must wait for its restart backoff."""
        return self.restart_paused and self.model.phase is Phase.PARKED

    def mark_started(self, log: Path) -> None:
        """Record that its worker was started for a new turn."""
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
        """exists: it has a worker, possibly one that is about to be restarted. worker: once it is ready.

        waiting: jobs for which to start it. unnamed: jobs that any worker may run.
        """
        phase, restarted = self.model.phase, pid not in (None, self.pid)
        if restarted:
            self.pid = pid
        if restarted or pid is None:
            self.load_began = now
        if phase is not Phase.PARKED and not exists:
            phase = Phase.PARKED
        elif phase is Phase.RUNNING and (restarted or pid is None):
            phase = Phase.LOADING  # it crashed, and its memory stays reserved for the restart
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
        """The reason to give up loading, or None."""
        load_s = LOAD_S + self.model.need / LOAD_BYTES_PER_S
        if self.model.phase is Phase.LOADING and now - self.load_began > load_s:
            return f"not loaded within {load_s:.0f} s, and its worker was killed; log: {self.log}"
        return None


def child_name(model: str) -> str:
    """The service name of a model's worker."""
    return f"worker of {model}"


def _since(then: float | None, now: float) -> float:
    return now if then is None else then
