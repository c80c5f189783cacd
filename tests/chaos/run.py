"""One case: a stack, its load, the faults, and how long it took to recover from each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import httpx
import redis

from tasks.records.job import TERMINAL
from tasks.store.jobs import JobStore
from tests.chaos.clients.client import Client
from tests.chaos.clients.hooks import Hooks
from tests.chaos.clients.load import Load
from tests.chaos.judging.verdict import Ends, Tally, verdict
from tests.chaos.stack import Stack
from tests.support.peers.receivers import receiving

LOOK_S = 0.02
RECOVERY_LIMIT_S = 180.0  # nothing takes so long but what has been lost
END_LIMIT_S = 300.0
MOVED_BY_IO = ("status", "chunk", "place", "parts", "total", "validated")  # fields of a batch


class Target(Protocol):
    """What faults are put into. other: a second model that it serves."""

    store: JobStore
    url: str
    other: str | None

    def is_worker(self, name: str, worker_id: str) -> bool:
        """Whether the records mean the model worker of this name."""
        ...


Struck = TypeVar("Struck", bound=Target)
Answer = TypeVar("Answer")


class Skipped(Exception):
    """A case that this machine cannot show, and why."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything. delay_s: of a job in the engine; outage_s: of what goes
    away and comes back; large: lines of a file that takes a while to read.
    """

    strikes: int
    jobs_per_s: float
    lines: int
    delay_s: float
    outage_s: float
    large: int
    minutes: float


@dataclass
class Outcome:
    """A row of the table."""

    faults: int
    recoveries_s: list[float]
    tally: Tally
    notes: list[str]


@dataclass
class Trial(Generic[Struck]):
    """What a case works with."""

    stack: Struck
    load: Load
    size: Size
    client: Client
    ends: Ends
    seed: int = 0
    faults: int = 0
    recoveries_s: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)  # of what was looked at before the end

    def outage(self, fault: Callable[[], object]) -> None:
        """A strike whose function returns when what was away is back: timed from then."""
        self.strike(fault, outage=True)

    def strike(self, fault: Callable[[], object], outage: bool = False) -> None:
        """Put in a fault, and wait until the stack has recovered, which is timed from the strike.

        Recovered: every job that ran when it struck has ended, and so has one for each model that was
        submitted afterwards; and if batches are under way, an io worker has moved at least one of them on.
        """
        ran = self.running()
        since = time.monotonic()
        fault()
        if outage:
            since = time.monotonic()
        self.faults += 1
        before = self._insist(lambda: {batch_id: self._progress(batch_id) for batch_id in self._batches()})
        models = {None, self.stack.other}
        probes = [self.load.job(self.client, "delay=0", model=model) for model in models]

        def recovered() -> bool:
            moved = not before or any(self._progress(one) != was for one, was in before.items())
            return moved and all(self.has_ended(job_id) for job_id in (*ran, *probes))

        if self.wait(recovered, "the stack has not recovered"):
            self.recoveries_s.append(time.monotonic() - since)

    def wait(self, holds: Callable[[], bool], otherwise: str, limit_s: float = RECOVERY_LIMIT_S) -> bool:
        """Until it holds; what did not in time is one of the troubles."""
        give_up = time.monotonic() + limit_s
        while time.monotonic() < give_up:
            with suppress(redis.RedisError, httpx.TransportError):
                if holds():
                    return True
            time.sleep(LOOK_S)
        self.troubles.append(f"{otherwise} within {limit_s:g} s")
        return False

    def _insist(self, ask: Callable[[], Answer]) -> Answer:
        """What Redis answers as soon as it does."""
        give_up = time.monotonic() + RECOVERY_LIMIT_S
        while True:
            try:
                return ask()
            except redis.RedisError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(LOOK_S)

    @contextmanager
    def under_load(self) -> Iterator[None]:
        """Begins when both kinds of work run. Within another one, nothing more begins or ends."""
        if self.load.busy:
            yield
            return
        self.load.begin(self.size.jobs_per_s, self.size.lines)
        try:
            self.wait(lambda: bool(self.running()) and self._sending(), "no load came up")
            yield
        finally:
            self.load.end()

    def record(self, job_id: str) -> dict[str, Any]:
        record: dict[str, Any] = self.client.get(f"/v1/jobs/{job_id}")
        return record

    def status_of(self, batch_id: str) -> str:
        return str(self.stack.store.db.redis.hget(f"{self.stack.store.db.prefix}batch:{batch_id}", "status"))

    def failed(self, batch_id: str) -> int:
        """Lines of a batch that have failed so far."""
        return int(
            self.stack.store.db.redis.hget(f"{self.stack.store.db.prefix}batch:{batch_id}", "failed") or 0
        )

    def jobs_of(self, name: str) -> list[str]:
        """Jobs and windows that a model worker has claimed and not ended, as the records say."""
        return [one for one in self.running() if self.stack.is_worker(name, self._holder(one))]

    def _holder(self, work_id: str) -> str:
        return self._field(work_id, "worker") or ""

    def _field(self, work_id: str, name: str) -> str | None:
        """Of the record of a job or window."""
        kind = "win" if work_id.startswith("win_") else "job"
        value: str | None = self.stack.store.db.redis.hget(
            f"{self.stack.store.db.prefix}{kind}:{work_id}", name
        )
        return value

    def is_busy(self, name: str) -> bool:
        """Waits until this model worker has a job to lose."""
        return self.wait(lambda: bool(self.jobs_of(name)), f"{name} had nothing to do")

    def attempts(self, since: int) -> int:
        """The most that any single job has needed, of those accepted after so many others."""
        key = f"{self.stack.store.db.prefix}job:"
        all_jobs = list(self.load.accepted.jobs)[since:]
        return max(int(self.stack.store.db.redis.hget(key + one, "attempts") or 0) for one in all_jobs)

    def running(self) -> list[str]:
        """Jobs and windows that are claimed."""
        redis, prefix = self.stack.store.db.redis, self.stack.store.db.prefix
        names = ("status:running", "window_leases")
        return [one for name in names for one in redis.zrange(prefix + name, 0, -1)]

    def outcome(self) -> Outcome:
        """Once all work has ended."""
        total = self.tally + verdict(self.stack.store, self.load, self.ends, END_LIMIT_S)
        total.troubles += self.troubles
        return Outcome(self.faults, self.recoveries_s, total, self.notes)

    def _batches(self) -> list[str]:
        active: list[str] = self.stack.store.db.redis.zrange(
            f"{self.stack.store.db.prefix}batches:active", 0, -1
        )
        return active

    def _sending(self) -> bool:
        key = f"{self.stack.store.db.prefix}batch:"
        return any(int(self.stack.store.db.redis.hget(key + one, "place") or 0) for one in self._batches())

    def _progress(self, batch_id: str) -> list[str | None]:
        key = f"{self.stack.store.db.prefix}batch:{batch_id}"
        fields: list[str | None] = self.stack.store.db.redis.hmget(key, MOVED_BY_IO)
        return fields

    def has_ended(self, work_id: str) -> bool:
        """A batch's job is gone when its result is in a part, a window when all its lines have ended.

        What had not begun of a lost window is in one of its own by then, which is not asked for.
        """
        status = self._field(work_id, "status")
        return status is None or status in TERMINAL


Run: TypeAlias = Trial[Stack]


@contextmanager
def running(stack: Struck, size: Size, seed: int = 0, host: str = "127.0.0.1") -> Iterator[Trial[Struck]]:
    """What cases work with on this stack. host: where webhooks are received."""
    with receiving(host=host) as receiver:
        load = Load(stack.url, size.delay_s, Hooks(receiver), other=stack.other)
        ends = Ends(stack.store, load.accepted)
        run = Trial(stack, load, size, load.client(), ends, seed)
        try:
            yield run
        finally:
            load.end()
            ends.close()
            run.client.close()
