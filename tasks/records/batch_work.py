"""The data that the store of batches and the leading io worker exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.records.batch import Batch

QueueCounts = Mapping[str, Mapping[str, int]]  # model queue (as in Job) -> owner -> number of jobs


@dataclass(frozen=True, slots=True)
class Active:
    """A batch that has not ended. live: its jobs that have not ended; uncollected: ended ones in no segment.

    batch: only the fields of WORKED_ON in batches/store.py are set.
    """

    batch: Batch
    live: int
    uncollected: int


@dataclass(frozen=True, slots=True)
class Work:
    """The work that leader/lead found. now: Unix seconds by the clock of Redis. in_flight: bulk jobs sent and
    not ended; deferred: bulk jobs that wait in the store until their owner's share allows them.

    cleanup: some of the batches with objects left in the file store. weights: by owner, 1 where absent.
    spent: owners without tokens left today. known: models that have a queue.
    """

    now: float
    in_flight: QueueCounts
    deferred: QueueCounts
    active: list[Active]
    cleanup: list[str]
    weights: Mapping[str, float] = field(default_factory=dict)
    spent: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()
    interactive_in_flight: QueueCounts = field(default_factory=dict)
    interactive_deferred: QueueCounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndedJob:
    """The end of one line's job."""

    job_id: str
    line: int
    custom_id: str
    status: str
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    record: dict[str, Any]  # the fields of the job's record that a response needs


@dataclass(frozen=True, slots=True)
class Ended:
    """Results for segment `number`. taken: list entries they cover, including jobs without a record."""

    number: int
    taken: int
    jobs: list[EndedJob]
