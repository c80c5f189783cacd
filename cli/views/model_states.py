"""The state of each model, from the gateway and from a `medusaq up` on this machine, which knows more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from cli.processes.ports import LOOPBACK
from cli.processes.restart_backoff import Restart
from cli.stack.state_file import running_models, running_restarts, running_stack
from cli.views.snapshot import Snapshot, take_snapshot
from medusaq.errors import GatewayError, GatewayUnreachable

RUNNING, PARKED = "running", "parked"  # also Phase's words
FAILED = "failed"  # it cannot be loaded, and its jobs fail
UNSERVED = "no worker"  # jobs wait for it, and no worker is expected
NEARBY = (LOOPBACK, "localhost", "::1")


@dataclass(frozen=True, slots=True)
class ModelState:
    """state: a Phase, FAILED or UNSERVED. oldest_s: age of the oldest waiting job.

    need: bytes of memory; None if unknown on this machine.
    """

    name: str
    state: str
    workers: int = 0
    waiting: int = 0
    oldest_s: float = 0.0
    need: int | None = None


def model_states(snapshot: Snapshot, pool_models: Sequence[Mapping[str, Any]] = ()) -> list[ModelState]:
    """The states of all served, announced and queued models. pool_models: from models_nearby()."""
    workers_by_model = {model["id"]: int(model["workers"]) for model in snapshot.models}
    pool_by_name = {pool_model["name"]: pool_model for pool_model in pool_models}
    found = []
    for name in sorted({*workers_by_model, *pool_by_name, *snapshot.waited_for}):
        workers, pool_model = workers_by_model.get(name, 0), pool_by_name.get(name, {})
        state = RUNNING if workers else PARKED if name in workers_by_model else UNSERVED
        state = FAILED if pool_model.get("refusal") else pool_model.get("phase", state)
        waiting, oldest = snapshot.waiting_for(name)
        found.append(ModelState(name, state, workers, waiting, oldest, pool_model.get("need")))
    return found


def states_nearby(state_dir: Path) -> list[ModelState] | None:
    """The states of the models of the `medusaq up` on this state folder; None if none answers."""
    running = running_stack(state_dir)
    if not running:
        return None
    url = f"http://{LOOPBACK}:{running['port']}"
    try:
        return model_states(take_snapshot(url), models_nearby(state_dir, url))
    except (GatewayUnreachable, GatewayError):
        return None


def models_nearby(state_dir: Path, url: str) -> list[Mapping[str, Any]]:
    """The models of the `medusaq up` on this state folder, if it has several and runs this gateway."""
    return list(running_models(state_dir).get("models", [])) if _nearby(state_dir, url) else []


def restarts_nearby(state_dir: Path, url: str) -> list[Restart]:
    """Crashed services of the `medusaq up` on this state folder, if it runs this gateway."""
    return running_restarts(state_dir) if _nearby(state_dir, url) else []


def _nearby(state_dir: Path, url: str) -> bool:
    address, running = httpx.URL(url), running_stack(state_dir)
    return address.host in NEARBY and running.get("port") == address.port
