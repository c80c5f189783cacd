"""Whose work is sent next: pure functions over what is in flight and what waits.

Max-min fairness by weight: the owner with the fewest jobs in flight for its weight goes first. So an owner
with 50,000 lines and one with ten share the workers half and half for as long as both have something to run.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

DEFERRED = ""  # the source of jobs that were submitted one by one


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Source:
    """A batch, or an owner's deferred jobs. rank: the source with the lowest goes first.

    waiting: known number of its jobs that can be sent.
    """

    owner: str
    name: str
    rank: tuple[float, ...]
    waiting: int


def shares(
    sources: Iterable[Source],
    in_flight: Mapping[str, int],
    capacity: int,
    weights: Mapping[str, float],
    served: Mapping[str, int] = MappingProxyType({}),
) -> Counter[Source]:
    """Number of jobs to send from each source, so that at most `capacity` jobs are in flight.

    in_flight, weights, served: by owner; a missing weight is 1. served: a number that grows with each time
    an owner's jobs are sent. Among equals the one that has waited for longest goes first, so that with more
    owners than places each has its turn.
    """
    queues: dict[str, list[Source]] = {}
    for source in sorted(sources, key=lambda s: s.rank, reverse=True):
        if source.waiting > 0:
            queues.setdefault(source.owner, []).append(source)
    free = capacity - sum(in_flight.values())
    sent: Counter[Source] = Counter()
    turns = [
        (in_flight.get(owner, 0) / weights.get(owner, 1.0), served.get(owner, 0), owner) for owner in queues
    ]
    heapq.heapify(turns)
    while turns and free > 0:
        load, last, owner = heapq.heappop(turns)
        queue = queues[owner]
        sent[queue[-1]] += 1
        free -= 1
        if sent[queue[-1]] == queue[-1].waiting:
            queue.pop()
        if queue:
            heapq.heappush(turns, (load + 1 / weights.get(owner, 1.0), last, owner))
    return sent


def in_turns(items: Iterable[T], owner: Callable[[T], str]) -> list[T]:
    """Interleave by owner: the first item of each, then the second of each, in the given order otherwise."""
    seen: Counter[str] = Counter()
    placed = []
    for item in items:
        placed.append((seen[owner(item)], item))
        seen[owner(item)] += 1
    return [item for _, item in sorted(placed, key=lambda one: one[0])]
