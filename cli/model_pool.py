"""Several models under one supervisor: looks at their queues, and obeys cli/turns.py within the budget."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cli.errors import CliError, ModelNotLoadable
from cli.model_budget import Served
from cli.supervisor import ChildSpec, Supervisor
from cli.turns import Model, Phase, Rules, at_once, decide
from tasks.errors import StoreUnavailable
from tasks.job import Priority
from tasks.queues import list_key
from tasks.registry import Registry, WorkerInfo
from tasks.scripts import answering
from tasks.settings import Settings
from tasks.store import JobStore

LOOK_S = 0.25  # between two looks at the queues
ANSWER_S = 0.5  # that Redis has for each answer: meanwhile crashed services wait for their restart
ANNOUNCED_S = 15.0  # how long the gateway believes that a parked model will come
SWAP_DRAIN_S = 600.0  # that the running jobs of a model have which makes room for another
KILL_S = 10.0  # above that until its worker is killed
BUSY = ("running", "waiting")  # figures of an engine that has something to do
NO_MODEL = ""  # whose queues hold what any worker may run


@dataclass(slots=True)
class _Member:
    """A model of the pool. pid: of the worker that was ready last. refusal: why it cannot be loaded."""

    served: Served
    model: Model
    pid: int | None = None
    refusal: str | None = None
    lost: bool = False  # not even its refusals can be served
    waiting: int = 0
    running: int = 0

    @property
    def child(self) -> str:
        return child_name(self.served.name)


def child_name(model: str) -> str:
    """Of its worker, among the services."""
    return f"worker of {model}"


class ModelPool:
    """tend() is for the supervisor's thread. say gets one line for each event."""

    def __init__(
        self,
        models: Sequence[Served],
        rules: Rules,
        settings: Settings,
        spec: Callable[[Served, str | None], ChildSpec],
        say: Callable[[str], None],
        note: Path,
        swap_s: float,
    ) -> None:
        """spec: the worker of a model, or what refuses its jobs for a reason. note: a file that shows the
        pool to other commands. swap_s: after which a worker that makes room is killed.
        """
        self._swap_s = swap_s
        self._members = [_Member(model, Model(model.name, model.needed.total)) for model in models]
        self._rules = rules
        self._settings = settings.model_copy(update={"redis_timeout_s": ANSWER_S})
        self._spec = spec
        self._say = say
        self._note = note
        self._shown: dict[str, Any] = {}
        self._store: JobStore | None = None
        self._next_look = 0.0
        self._host = socket.gethostname()

    def tend(self, supervisor: Supervisor) -> None:
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        if self._store is None:
            self._store = JobStore(self._settings)
        try:
            registry = Registry(self._store, self._settings.worker_ttl_s)
            live, waiting = registry.live(), self._waiting(self._store)
            registry.announce_models([member.served.name for member in self._members], ANNOUNCED_S)
        except StoreUnavailable:
            return  # nothing is known, so nothing is swapped
        for member in self._members:
            self._see(member, supervisor, live, waiting, now)
        actions = decide([m.model for m in self._members if not m.lost], self._rules, now)
        for member in self._members:
            if member.served.name in actions.stop:
                self._stop(member, supervisor)
            elif member.served.name in actions.start:
                self._start(member, supervisor)
        self._show()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
        self._note.unlink(missing_ok=True)

    def _waiting(self, store: JobStore) -> dict[str, int]:
        """Messages in the queues of each model. Raises StoreUnavailable."""
        names = [NO_MODEL, *(member.served.name for member in self._members)]
        with answering(), store.redis.pipeline(transaction=False) as pipe:
            for name in names:
                for priority in Priority:
                    pipe.llen(list_key(self._settings, priority, name))
            lengths = pipe.execute()
        return {name: sum(lengths[2 * place : 2 * place + 2]) for place, name in enumerate(names)}

    def _see(
        self,
        member: _Member,
        supervisor: Supervisor,
        live: Sequence[WorkerInfo],
        waiting: dict[str, int],
        now: float,
    ) -> None:
        model, pid = member.model, supervisor.pids().get(member.child)
        worker = next((one for one in live if (one.host, one.pid) == (self._host, pid)), None)
        phase = model.phase
        if phase is not Phase.PARKED and not supervisor.has(member.child):
            phase = Phase.PARKED
        elif phase is Phase.LOADING and worker is not None:
            phase, member.pid = Phase.RUNNING, pid
        elif phase is Phase.RUNNING and pid != member.pid:
            phase = Phase.LOADING  # it crashed, and keeps its memory for the restart
        member.waiting = waiting[model.name]
        member.running = 0 if worker is None else sum(int(worker.metrics.get(name, 0)) for name in BUSY)
        idle = worker is not None and not (member.waiting or member.running or waiting[NO_MODEL])
        parked_for = phase is Phase.PARKED and member.waiting > 0
        member.model = replace(
            model,
            phase=phase,
            running_since=now if phase is not model.phase else model.running_since,
            waited_for_since=_since(model.waited_for_since, now) if parked_for else None,
            idle_since=_since(model.idle_since, now) if idle and phase is Phase.RUNNING else None,
        )

    def _start(self, member: _Member, supervisor: Supervisor) -> None:
        spec = self._spec(member.served, member.refusal)
        member.model = replace(member.model, phase=Phase.LOADING, waited_for_since=None)
        supervisor.begin(replace(spec, on_given_up=lambda error: self._given_up(member, error)))
        if member.refusal is None:
            wait = f": {member.waiting} jobs wait for it" if member.waiting else ""
            self._say(f"loading {member.served.name}{wait}")

    def _stop(self, member: _Member, supervisor: Supervisor) -> None:
        """SIGINT: take no more jobs, and end with those that run."""
        supervisor.end(member.child, signal.SIGINT, self._swap_s)
        member.model = replace(member.model, phase=Phase.STOPPING, idle_since=None)
        self._say(f"{member.served.name} is parked when its running jobs have ended: another model's turn")

    def _given_up(self, member: _Member, error: CliError) -> None:
        """Its jobs fail with the reason from now on. Raises the error when no model is left."""
        name = member.served.name
        member.lost = member.refusal is not None
        member.refusal = str(error).splitlines()[0]
        member.model = Model(name, refusal_bytes())
        if all(one.refusal is not None for one in self._members):
            raise ModelNotLoadable(member.refusal)
        if member.lost:
            self._say(f"{name}: its jobs wait, since not even a refusal can be served: {member.refusal}")
        else:
            self._say(f"{name} cannot be served, its jobs fail and the others go on: {member.refusal}")

    def _show(self) -> None:
        """For `medusaq doctor` and `medusaq top`, once something has changed."""
        models = [
            {
                "name": member.served.name,
                "need": member.model.need,
                "phase": member.model.phase,
                "waiting": member.waiting,
                "running": member.running,
                "refusal": member.refusal,
            }
            for member in self._members
        ]
        shown = {"budget": self._rules.budget, "models": models}
        if shown != self._shown:
            part = self._note.with_suffix(".part")
            with contextlib.suppress(OSError):  # a full disk stops no model
                part.write_text(json.dumps(shown), encoding="utf-8")
                part.replace(self._note)
            self._shown = shown


def pool_of(
    models: Sequence[Served],
    budget: int,
    settings: Settings,
    worker: Callable[[dict[str, str], int], ChildSpec],
    say: Callable[[str], None],
    note: Path,
) -> ModelPool:
    """worker: a model worker with these variables more, and its place among several.

    Two engines on the same cores slow each other, so that each gets its share of them.
    """
    from engine.context import usable_cores

    together = at_once([model.needed.total for model in models], budget)
    threads = settings.threads or max(1, usable_cores() // together)
    swap_s = SWAP_DRAIN_S if settings.swap_drain_s is None else settings.swap_drain_s

    def spec(model: Served, refusal: str | None) -> ChildSpec:
        env = {
            "MEDUSAQ_MODEL": model.asked,
            "MEDUSAQ_THREADS": str(threads),
            "MEDUSAQ_SWAP_DRAIN_S": str(swap_s),
        }
        if refusal is not None:
            env |= {"MEDUSAQ_ENGINE_FACTORY": "engine.refusing:load", "MEDUSAQ_REFUSAL": refusal}
        own = worker(env, models.index(model))
        log = own.log.with_name(f"worker-{re.sub(r'[^A-Za-z0-9._-]', '_', model.name)}.log")
        return replace(own, name=child_name(model.name), log=log)

    return ModelPool(models, Rules(budget, settings.turn_s), settings, spec, say, note, swap_s + KILL_S)


def refusal_bytes() -> int:
    """What a worker without a model needs."""
    from engine.memory import PROCESS_BYTES

    return PROCESS_BYTES


def _since(then: float | None, now: float) -> float:
    return now if then is None else then
