"""Decides which models run if memory does not hold all of them: a pure function, evaluated at every poll.

A parked model with waiting jobs takes the memory of running models that have been idle for a while, or whose
turn is over. Models are served in the order in which their jobs began to wait, and later ones may not take
the memory that an earlier one needs. So each waits at most one turn and one swap for each model before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

TURN_S = 60.0  # a swap of seconds then costs a few percent
IDLE_S = 3.0  # three heartbeats: a worker's metrics are up to one heartbeat old


class Phase(StrEnum):
    """LOADING and STOPPING take memory too; a crashed model that is about to be restarted is LOADING."""

    PARKED = "parked"
    LOADING = "loading"
    RUNNING = "running"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Model:
    """The current state of a model. Times are in seconds of one clock.

    need: bytes. running_since: when it was ready. waited_for_since: since when jobs wait for it, while it is
    parked. idle_since: since when it has had nothing to do, while it runs.
    """

    name: str
    need: int
    phase: Phase = Phase.PARKED
    running_since: float = 0.0
    waited_for_since: float | None = None
    idle_since: float | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """budget: bytes. Times in seconds."""

    budget: int
    turn_s: float = TURN_S
    idle_s: float = IDLE_S


@dataclass(frozen=True, slots=True)
class Actions:
    """Names of the models to start and to stop now."""

    start: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()


def decide(models: Sequence[Model], rules: Rules, now: float) -> Actions:
    """The models to start and stop now. models: in order of preference, which decides ties."""
    free = rules.budget - sum(model.need for model in models if model.phase is not Phase.PARKED)
    parked = [model for model in models if model.phase is Phase.PARKED]
    claims = [(model.waited_for_since, model) for model in parked if model.waited_for_since is not None]
    claims.sort(key=lambda claim: claim[0])
    start: list[str] = []
    for since, model in claims:
        if model.need > free:
            coming = free + sum(other.need for other in models if other.phase is Phase.STOPPING)
            return Actions(tuple(start), _make_room(models, model.need - coming, since, rules, now))
        start.append(model.name)
        free -= model.need
    for model in parked:
        if model.name not in start and model.need <= free:
            start.append(model.name)
            free -= model.need
    return Actions(tuple(start))


def _make_room(
    models: Sequence[Model], wanted: int, since: float, rules: Rules, now: float
) -> tuple[str, ...]:
    """The models to stop to free `wanted` bytes for a model that has waited since `since`; () if impossible.

    The longest idle go first, then those that have run longest.
    """
    idle, over = [], []
    for model in models:
        if model.phase is not Phase.RUNNING:
            continue
        if model.idle_since is not None and now - model.idle_since >= rules.idle_s:
            idle.append((model.idle_since, model))
        elif now - max(model.running_since, since) >= rules.turn_s:
            over.append((model.running_since, model))
    ordered = [model for each in (idle, over) for _, model in sorted(each, key=lambda pair: pair[0])]
    stop: list[Model] = []
    for model in ordered:
        if sum(one.need for one in stop) < wanted:
            stop.append(model)
    if sum(one.need for one in stop) < wanted:
        return ()
    for model in reversed(stop[:-1]):  # the last one may have made an earlier one needless
        if sum(one.need for one in stop) - model.need >= wanted:
            stop.remove(model)
    return tuple(model.name for model in stop)


def max_concurrent(needs: Sequence[int], budget: int) -> int:
    """The most models that can ever run together; at least 1."""
    together = 0
    for need in sorted(needs):
        budget -= need
        together += budget >= 0
    return max(1, together)
