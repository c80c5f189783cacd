"""A model of many workers: arrivals, two queues, fair rounds, and engines that slow down as they fill.

Discrete events on simpy. A request's work is what it takes alone, in seconds; beside others an engine gives
each of its k running requests speed(k) of that. Where the system's own code is pure, it runs here too: for
the shares of owners, and how many bulk jobs may be outstanding.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import simpy

from tasks.batches.capacity import Capacity
from tasks.batches.fair_share import Source, shares
from tasks.batches.leader import BULK_AHEAD_S, ROUND_S
from tasks.records.job import Priority
from tasks.store.workers import WorkerInfo

ORDER = {Priority.INTERACTIVE: 0, Priority.BULK: 1}


@dataclass(slots=True)
class Request:
    """created and begun in simulated seconds; begun: when it got its slot."""

    priority: Priority
    work_s: float
    created: float
    owner: str = ""
    begun: float = -1.0
    ended: float = -1.0

    @property
    def queue_s(self) -> float:
        return self.begun - self.created


class Engine:
    """One worker: `slots` requests run, `lookahead` more are claimed and wait, interactive first."""

    def __init__(self, fleet: Fleet, slots: int, lookahead: int, speed: Callable[[int], float]) -> None:
        self._fleet, self._env = fleet, fleet.env
        self._slots, self._lookahead, self._speed = slots, lookahead, speed
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, int, Request]] = []
        self._running: list[tuple[float, int, Request]] = []  # by the progress at which each ends
        self._progress = 0.0  # seconds of its own work that a request here since the start would have done
        self._at = 0.0
        self._changed = self._env.event()
        self._env.process(self._run())

    @property
    def free(self) -> int:
        return self._slots + self._lookahead - len(self._waiting) - len(self._running)

    def take(self, request: Request) -> None:
        heapq.heappush(self._waiting, (ORDER[request.priority], next(self._numbers), request))
        self._advance()
        self._admit()
        if not self._changed.triggered:
            self._changed.succeed()

    def _run(self) -> Generator[simpy.Event, Any, None]:
        while True:
            events = [self._changed]
            if self._running:
                left = self._running[0][0] - self._progress
                events.append(self._env.timeout(max(0.0, left / self._speed(len(self._running)))))
            yield simpy.AnyOf(self._env, events)
            ended = not self._changed.triggered
            self._changed = self._env.event() if self._changed.triggered else self._changed
            self._advance()
            if ended:  # whatever rounding says of the progress: this is the time at which the first ends
                self._end()
            self._admit()
            self._fleet.serve(self)

    def _advance(self) -> None:
        if self._running:
            self._progress += self._speed(len(self._running)) * (self._env.now - self._at)
        self._at = self._env.now

    def _end(self) -> None:
        _, _, request = heapq.heappop(self._running)
        request.ended = self._env.now
        self._fleet.end(request)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._slots:
            _, number, request = heapq.heappop(self._waiting)
            request.begun = self._env.now
            heapq.heappush(self._running, (self._progress + request.work_s, number, request))


class Fleet:
    """The workers and what waits for them. Redis serves the worker that has asked for longest."""

    def __init__(
        self, env: simpy.Environment, workers: int, slots: int, lookahead: int, speed: Callable[[int], float]
    ) -> None:
        self.env = env
        self.ended: list[Request] = []
        self._queues: dict[Priority, deque[Request]] = {priority: deque() for priority in Priority}
        self._in_order = [self._queues[priority] for priority in sorted(Priority, key=ORDER.__getitem__)]
        self._asking: deque[Engine] = deque()
        self._held: dict[str, deque[Request]] = {}
        self._outstanding: Counter[str] = Counter()
        self._workers = [WorkerInfo("w", "", 0, slots, 0, "h", 0.0)] * workers
        self._capacity = Capacity(fills=2, most_s=BULK_AHEAD_S, clock=lambda: env.now)
        self._wake = env.event()
        self._engines = [Engine(self, slots, lookahead, speed) for _ in range(workers)]
        self._asking.extend(self._engines)
        env.process(self._rounds())

    def submit(self, request: Request) -> None:
        if request.priority is Priority.BULK:
            self._held.setdefault(request.owner, deque()).append(request)
            self._wake_up()
        else:
            self._queue(request)

    def serve(self, engine: Engine) -> None:
        """A worker has perhaps places again: it asks, and is served at once if anything waits."""
        if engine.free > 0 and engine not in self._asking:
            self._asking.append(engine)
        self._hand_out()

    def end(self, request: Request) -> None:
        self.ended.append(request)
        if request.priority is Priority.BULK:
            self._outstanding[request.owner] -= 1
            self._wake_up()

    def _queue(self, request: Request) -> None:
        self._queues[request.priority].append(request)
        self._hand_out()

    def _hand_out(self) -> None:
        while self._asking and (queue := self._next_queue()) is not None:
            engine = self._asking.popleft()
            if engine.free == 0:
                continue
            engine.take(queue.popleft())
            if engine.free > 0:
                self._asking.append(engine)

    def _next_queue(self) -> deque[Request] | None:
        return next((queue for queue in self._in_order if queue), None)

    def _wake_up(self) -> None:
        if not self._wake.triggered:
            self._wake.succeed()

    def _rounds(self) -> Generator[simpy.Event, Any, None]:
        """The leading io worker: sends bulk work in fair shares, when it was woken, and not more often."""
        while True:
            yield self._wake
            self._wake = self.env.event()
            sources = [Source(owner, owner, (0.0,), len(held)) for owner, held in self._held.items()]
            most = self._capacity.update(self._workers)[""]
            found = {"": dict(self._outstanding)}
            for source, count in shares(sources, self._outstanding, most, {}).items():
                self._outstanding[source.owner] += count
                for _ in range(count):
                    self._queue(self._held[source.owner].popleft())
            self._capacity.note(found, {"": self._outstanding.total()})
            yield self.env.timeout(ROUND_S)


@dataclass(frozen=True, slots=True)
class Load:
    """Requests a second of each kind, in the mean; bulk ones in batches of lines, of owners in turns."""

    interactive_per_s: float
    bulk_per_s: float = 0.0
    lines: int = 1
    owners: tuple[str, ...] = ("a", "b", "c")
    work_s: Callable[[random.Random], float] = field(default=lambda random: random.expovariate(1.0))


def simulate(
    workers: int,
    slots: int,
    lookahead: int,
    speed: Callable[[int], float],
    load: Load,
    jobs: int,
    seed: int = 1,
) -> list[Request]:
    """The first so many requests to end, in the order of their ends."""
    env = simpy.Environment()
    fleet = Fleet(env, workers, slots, lookahead, speed)
    chance = random.Random(seed)
    if load.interactive_per_s:
        env.process(_interactive(env, fleet, load, chance))
    if load.bulk_per_s:
        env.process(_bulk(env, fleet, load, chance))
    while len(fleet.ended) < jobs:
        env.step()
    return fleet.ended


def _interactive(
    env: simpy.Environment, fleet: Fleet, load: Load, chance: random.Random
) -> Iterator[simpy.Event]:
    while True:
        yield env.timeout(chance.expovariate(load.interactive_per_s))
        fleet.submit(Request(Priority.INTERACTIVE, load.work_s(chance), env.now))


def _bulk(env: simpy.Environment, fleet: Fleet, load: Load, chance: random.Random) -> Iterator[simpy.Event]:
    for owner in itertools.cycle(load.owners):
        yield env.timeout(chance.expovariate(load.bulk_per_s / load.lines))
        for _ in range(load.lines):
            fleet.submit(Request(Priority.BULK, load.work_s(chance), env.now, owner))
