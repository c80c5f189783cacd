"""What each model does: as a gateway knows it, or a `medusaq up` on this machine, which knows more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from cli.base.errors import GatewayUnreachable
from cli.gateway.client import Refused
from cli.processes.ports import LOOPBACK
from cli.processes.restart_backoff import Restart
from cli.stack.state_file import running_models, running_restarts, running_stack
from cli.views.snapshot import Picture, look

RUNNING, PARKED = "running", "parked"  # also Phase's words
FAILED = "failed"  # it cannot be loaded, and its jobs fail
UNSERVED = "no worker"  # jobs wait for it, and nobody is known to come
NEARBY = (LOOPBACK, "localhost", "::1")


@dataclass(frozen=True, slots=True)
class ModelState:
    """state: a Phase, FAILED or UNSERVED. oldest_s: since the oldest job that waits for it was made.

    need: bytes of memory; None where only another machine knows.
    """

    name: str
    state: str
    workers: int = 0
    waiting: int = 0
    oldest_s: float = 0.0
    need: int | None = None


def model_states(picture: Picture, noted: Sequence[Mapping[str, Any]] = ()) -> list[ModelState]:
    """Of all that are served, announced or waited for. noted: what models_nearby() says."""
    told = {model["id"]: int(model["workers"]) for model in picture.models}
    notes = {note["name"]: note for note in noted}
    found = []
    for name in sorted({*told, *notes, *picture.waited_for}):
        workers, note = told.get(name, 0), notes.get(name, {})
        state = RUNNING if workers else PARKED if name in told else UNSERVED
        state = FAILED if note.get("refusal") else note.get("phase", state)
        waiting, oldest = picture.waiting_for(name)
        found.append(ModelState(name, state, workers, waiting, oldest, note.get("need")))
    return found


def states_nearby(state_dir: Path) -> list[ModelState] | None:
    """Of the models of the `medusaq up` that runs on this state folder; None where none answers."""
    running = running_stack(state_dir)
    if not running:
        return None
    url = f"http://{LOOPBACK}:{running['port']}"
    try:
        return model_states(look(url), models_nearby(state_dir, url))
    except (GatewayUnreachable, Refused):
        return None


def models_nearby(state_dir: Path, url: str) -> list[Mapping[str, Any]]:
    """Those of a `medusaq up` with several which runs on this state folder and has this gateway."""
    return list(running_models(state_dir).get("models", [])) if _nearby(state_dir, url) else []


def restarts_nearby(state_dir: Path, url: str) -> list[Restart]:
    """Services that ended, of a `medusaq up` which runs on this state folder and has this gateway."""
    return running_restarts(state_dir) if _nearby(state_dir, url) else []


def _nearby(state_dir: Path, url: str) -> bool:
    address, running = httpx.URL(url), running_stack(state_dir)
    return address.host in NEARBY and running.get("port") == address.port
