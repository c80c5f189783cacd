"""Numbers of waiting and running jobs, read in one call of Redis."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from tasks.store.database import Database


@dataclass(frozen=True, slots=True)
class Waiting:
    """Waiting jobs of one model and priority. oldest_s: age of the oldest."""

    jobs: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class QueueStats:
    """jobs: records by status; ended: jobs that ever ended, by status; waiting and oldest_s: by priority.

    oldest_s: since the creation of the oldest job that waits, 0 for none. deferred: jobs among those that
    wait which were not sent yet, in_flight: bulk jobs that were and have not ended. lines: of batches,
    among those that wait, which are in no window yet; they wait since their batch was made. led: an io worker
    works. webhooks_due_s: since the webhook that waits longest should have been sent, 0 for none.
    models: those that wait for one model alone, by its name and their priority, without the lines that are in
    no window yet. windows: of lines of batches, by their model ("" where any worker may take them), how many
    are queued and running. lines_ended: of batches, by their status, or "refused" when their file was read.
    """

    jobs: Mapping[str, int]
    ended: Mapping[str, int]
    waiting: Mapping[str, int]
    oldest_s: Mapping[str, float]
    deferred: int
    lines: int
    in_flight: int
    batches: int
    has_leader: bool
    webhooks_due_s: float
    models: Mapping[str, Mapping[str, Waiting]]
    windows: Mapping[str, Mapping[str, int]]
    lines_ended: Mapping[str, int]


def queue_stats(database: Database) -> QueueStats:
    """Raises StoreUnavailable."""
    found = json.loads(database.scripts.run("queues/queue_stats"))
    return QueueStats(
        jobs=found["jobs"],
        ended=found["ended"],
        waiting=found["waiting"],
        oldest_s={priority: ms / 1000 for priority, ms in found["oldest_ms"].items()},
        deferred=found["deferred"],
        lines=found["lines"],
        in_flight=found["in_flight"],
        batches=found["batches"],
        has_leader=bool(found["led"]),
        webhooks_due_s=found["webhooks_due_ms"] / 1000,
        models={
            model: {
                priority: Waiting(of["waiting"], of["oldest_ms"] / 1000) for priority, of in queues.items()
            }
            for model, queues in found["models"].items()
        },
        windows=found["windows"] or {},  # an empty object is an empty list to Lua
        lines_ended=found["lines_ended"],
    )
