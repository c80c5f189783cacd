"""Runs several models under one supervisor: polls their queues, and swaps them as swap_policy.py decides."""

from __future__ import annotations

import re
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cli.base.errors import CliError, ModelNotLoadable
from cli.processes.supervisor import ChildSpec, Supervisor
from cli.stack.memory_budget import Served, check_each_fits, served_models
from cli.stack.pooled_model import PooledModel, child_name
from cli.stack.state_file import write_note
from cli.stack.swap_policy import TURN_S, Model, Phase, Rules, decide, max_concurrent
from common.processor import usable_cores
from tasks.base.errors import StoreUnavailable
from tasks.base.queue_names import QUEUES, list_key
from tasks.base.settings import Settings
from tasks.store.jobs import JobStore
from tasks.store.scripts import answering
from tasks.store.workers import Registry, WorkerInfo
from tasks.worker.heartbeat import TAKES_TURNS

POLL_S = 0.25  # interval at which the queues are polled
ANSWER_S = 0.5  # Redis timeout, short since it delays restarts of crashed services
ANNOUNCED_S = 15.0  # for how long the gateway treats a parked model as available
KILL_S = 10.0  # after the drain time, until a worker that makes room is killed
SHORT_PAUSE_S = 5.0  # before a restart, during which a crashed model keeps its memory
NO_MODEL = ""  # the queues of jobs that any worker may run


class ModelPool:
    """poll() is called from the supervisor's thread. say: called with one line per event."""

    def __init__(
        self,
        models: Sequence[Served],
        rules: Rules,
        settings: Settings,
        spec: Callable[[Served, str | None], ChildSpec],
        say: Callable[[str], None],
        state_file: Path,
        swap_s: float,
        measure: Callable[[Served], Served],
    ) -> None:
        """spec: makes the worker of a model, or with a reason one that fails its jobs. state_file: shows the
        pool to other commands. swap_s: after which a worker that makes room is killed. measure: the current
        memory needs of a model; raises CliError if it can no longer be served.
        """
        self._swap_s = swap_s
        self._measure = measure
        self._members = [PooledModel(model, Model(model.name, model.needed.total)) for model in models]
        self._rules = rules
        self._settings = settings
        self._spec = spec
        self._say = say
        self._state_file = state_file
        self._written: dict[str, Any] = {}
        self._store: JobStore | None = None
        self._next_poll = 0.0
        self._host = socket.gethostname()

    def poll(self, supervisor: Supervisor) -> None:
        now = time.monotonic()
        if now < self._next_poll:
            return
        self._next_poll = now + POLL_S
        if self._store is None:
            self._store = JobStore(self._settings, ANSWER_S)
        try:
            registry = Registry(self._store.db, self._settings.worker_ttl_s)
            live, waiting = registry.live(), self._waiting(self._store)
            names = [member.served.name for member in self._members if not member.unservable]
            registry.announce_models(names, ANNOUNCED_S)
        except StoreUnavailable:  # without the queues nothing is swapped, and no worker can report ready
            for member in self._members:
                member.load_began = now
            return
        self._observe(supervisor, live, waiting, now)
        actions = decide(
            [m.model for m in self._members if not m.unservable and not m.restart_pending], self._rules, now
        )
        for member in self._members:
            if member.served.name in actions.stop:
                self._stop(member, supervisor)
            elif member.served.name in actions.start:
                self._start(member, supervisor)
        self._write_state()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
        self._state_file.unlink(missing_ok=True)

    def _waiting(self, store: JobStore) -> dict[str, int]:
        """Messages in the queues of each model. Raises StoreUnavailable."""
        names = [NO_MODEL, *(member.served.name for member in self._members)]
        with answering(), store.db.redis.pipeline(transaction=False) as pipe:
            for name in names:
                for kind in QUEUES:
                    pipe.llen(list_key(self._settings, kind, name))
            lengths = pipe.execute()
        kinds = len(QUEUES)
        return {name: sum(lengths[n * kinds : (n + 1) * kinds]) for n, name in enumerate(names)}

    def _observe(
        self, supervisor: Supervisor, live: Sequence[WorkerInfo], waiting: dict[str, int], now: float
    ) -> None:
        pids, default_member = supervisor.pids(), self._default_member()
        for member in self._members:
            pid, exists = pids.get(member.child), supervisor.has(member.child)
            pause = supervisor.pause(member.child) or 0.0
            if exists and pause > SHORT_PAUSE_S:
                supervisor.end(member.child, signal.SIGKILL, 0)  # frees its memory for other models
            member.restart_paused = pause > 0
            worker = next((one for one in live if (one.host, one.pid) == (self._host, pid)), None)
            own = waiting[member.served.name] + (waiting[NO_MODEL] if member is default_member else 0)
            member.observe(exists, pid, worker, own, waiting[NO_MODEL], now)
            if (why := member.stuck(now)) is not None:
                supervisor.end(member.child, signal.SIGKILL, 0)
                member.ending, member.model = why, replace(member.model, phase=Phase.STOPPING)
            elif member.ending is not None and not exists:
                why, member.ending = member.ending, None
                self._give_up(member, CliError(why))

    def _default_member(self) -> PooledModel | None:
        """The model to start for jobs that name none; None if one runs or none can be served."""
        able = [member for member in self._members if member.refusal is None and not member.restart_pending]
        return None if any(m.model.phase is not Phase.PARKED for m in able) else next(iter(able), None)

    def _start(self, member: PooledModel, supervisor: Supervisor) -> None:
        if member.refusal is None:
            try:  # its name may refer to another file by now
                need = self._measure(member.served).needed.total
            except CliError as error:
                self._give_up(member, error)
                return
            if need > member.model.need:
                member.model = replace(member.model, need=need)
                return  # decide again with the new size
            member.model = replace(member.model, need=need)
        spec = self._spec(member.served, member.refusal)
        member.mark_started(spec.log)
        supervisor.begin(replace(spec, on_given_up=lambda error: self._give_up(member, error)))
        if member.refusal is None:
            wait = f": {member.waiting} jobs wait for it" if member.waiting else ""
            self._say(f"loading {member.served.name}{wait}")

    def _stop(self, member: PooledModel, supervisor: Supervisor) -> None:
        """Send SIGINT: the worker takes no more jobs, and exits once its running ones have ended."""
        supervisor.end(member.child, signal.SIGINT, self._swap_s)
        member.model = replace(member.model, phase=Phase.STOPPING, idle_since=None)
        self._say(f"{member.served.name} is unloaded for another model once its running jobs have ended")

    def _give_up(self, member: PooledModel, error: CliError) -> None:
        """Fail the jobs of a model from now on. Raises ModelNotLoadable if no model is left."""
        name = member.served.name
        member.unservable = member.refusal is not None
        member.refusal = str(error).splitlines()[0]
        member.model = Model(name, refusal_bytes())
        if all(one.refusal is not None for one in self._members):
            raise ModelNotLoadable(member.refusal)
        if member.unservable:
            self._say(f"{name}: its jobs wait, since not even a refusal can be served: {member.refusal}")
        else:
            self._say(f"{name} cannot be served, its jobs fail and the others go on: {member.refusal}")

    def _write_state(self) -> None:
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
        state = {"budget": self._rules.budget, "models": models}
        if state != self._written:
            write_note(self._state_file, state)
            self._written = state


def pool_of(
    models: Sequence[Served],
    budget: int,
    settings: Settings,
    worker: Callable[[dict[str, str], int], ChildSpec],
    say: Callable[[str], None],
    state_file: Path,
) -> ModelPool:
    """Make a pool. worker: makes a model worker from further variables and its index.

    The cores are divided among the models that run together, since engines on shared cores slow each other.
    """
    from engine.tools.failing_engine import FACTORY, REASON

    together = max_concurrent([model.needed.total for model in models], budget)
    threads = settings.threads or max(1, usable_cores() // together)

    def spec(model: Served, refusal: str | None) -> ChildSpec:
        env = {"MEDUSAQ_MODEL": model.source, "MEDUSAQ_THREADS": str(threads), TAKES_TURNS: "1"}
        if refusal is not None:
            # The failing engine reads no file: the path only gives the name of the model.
            env |= {"MEDUSAQ_ENGINE_FACTORY": FACTORY, REASON: refusal}
            env["MEDUSAQ_MODEL"] = f"./{model.name}.gguf"
        own = worker(env, models.index(model))
        log = own.log.with_name(f"worker-{re.sub(r'[^A-Za-z0-9._-]', '_', model.name)}.log")
        return replace(own, name=child_name(model.name), log=log)

    def measure(model: Served) -> Served:
        [found] = served_models([model.source], settings)
        check_each_fits([found], budget, settings)
        return found

    return ModelPool(
        models,
        Rules(budget, TURN_S),
        settings,
        spec,
        say,
        state_file,
        settings.swap_drain_s + KILL_S,
        measure,
    )


def refusal_bytes() -> int:
    """Bytes of memory of a worker without a model."""
    from engine.tools.memory_estimate import PROCESS_BYTES

    return PROCESS_BYTES
