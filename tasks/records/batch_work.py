"""The data that the store of batches and the leading io worker exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tasks.records.batch import Batch

QueueCounts = Mapping[str, Mapping[str, int]]  # model queue (as in Job) -> owner -> number of jobs


@dataclass(frozen=True, slots=True)
class Active:
    """A batch that has not ended.

    live: its windows that have not ended, and jobs; uncollected: lines that have and are in no segment,
    ended_jobs of which an earlier release sent as jobs. result_bytes: of the others.

    batch: only the fields of WORKED_ON in batches/store.py are set.
    """

    batch: Batch
    live: int
    uncollected: int
    ended_jobs: int = 0
    result_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """The work that leader/lead found. now: Unix seconds by the clock of Redis.

    in_flight: bulk jobs, and lines of batches, sent and not ended; deferred: bulk jobs that wait in the store
    until their owner's share allows them.

    cleanup: some of the batches with objects left in the file store. weights: by owner, 1 where absent.
    tokens_left: today, by owner, 0 or fewer for none; no limit where absent. known: models that have a queue.
    """

    now: float
    in_flight: QueueCounts
    deferred: QueueCounts
    active: list[Active]
    cleanup: list[str]
    weights: Mapping[str, float] = field(default_factory=dict)
    tokens_left: Mapping[str, int] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    interactive_in_flight: QueueCounts = field(default_factory=dict)
    interactive_deferred: QueueCounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Uncollected:
    """Lines for segment `number`, as it will hold them."""

    number: int
    lines: Sequence[str]
