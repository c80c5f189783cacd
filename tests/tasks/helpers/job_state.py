"""A job, its two workers and its messages between two steps, and what its scripts are told."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tasks.store.scripts import Argument
from tests.tasks.helpers.explorer import CLOCK, LIST, MS, NEVER, PREFIX, TERMINAL, TTL, Keys

JOB, OWNER, MODEL = "job_1", "key_o", "m"
RESERVED = 80  # bytes for its result
SET_ASIDE, TOOK = 10, 7  # tokens of its owner: while it lives, and in the end if it ran
LEASE = RESEND = 1  # ticks of the clock, a second each
OLD = 2  # ticks; a time longer ago than this is like any other
CAP = 2  # attempts
BEGAN = 1000  # what the clock says first
DEADLINE = BEGAN + 2  # of a job that has one
MESSAGES = 2  # copies of the job's message in the queue at most
RECONCILE = {
    "max_attempts": CAP,
    "resend_after_ms": RESEND * MS,
    "ttl_ms": TTL,
    "lease_ms": LEASE * MS,
    "gap_ms": NEVER,
    "limit": 200,
}
QUEUES = {p: [(p, "", PREFIX + LIST), (p, MODEL, PREFIX + LIST)] for p in ("bulk", "interactive")}
HOOK = json.dumps({"url": "http://x/", "to": "x:80", "events": [f"job.{status}" for status in TERMINAL]})
WORKERS = ("a", "b")
HOLDING = ("waiting", "running")
LEADER = "l"
LEADS = {"string led_by": LEADER, "string interactive_room": '{"":0}'}  # there is no room: jobs are held


class Worker(NamedTuple):
    """What one remembers: a message it has taken, then its claim, then that it has written an end.

    waiting: a claim that is to have the engine to itself, and has not yet.
    """

    stage: str = "idle"  # | taken | waiting | running | wrote
    token: str = ""
    fencing_token: int = 0
    told_to_stop: bool = False


class State(NamedTuple):
    """keys: of the server. winner: the fence that wrote the end. tokens: claims so far, to name the next.

    entered: how often the job was put into an engine, without those that handed it back.
    """

    keys: Keys
    workers: tuple[Worker, Worker]
    winner: int = 0
    tokens: int = 0
    entered: int = 0

    @property
    def job(self) -> dict[str, str]:
        record: dict[str, str] = self.keys[f"hash job:{JOB}"]
        return record

    @property
    def terminal(self) -> bool:
        return self.job["status"] in TERMINAL

    @property
    def now(self) -> int:
        return int(self.keys[f"string {CLOCK}"])

    @property
    def overdue(self) -> bool:
        return bool(self.job["deadline"]) and int(self.job["deadline"]) <= self.now * MS

    @property
    def queue(self) -> list[str]:
        messages: list[str] = self.keys.get(f"list {LIST}", [])
        return messages

    def with_worker(self, index: int, **changes: Any) -> State:
        workers = list(self.workers)
        workers[index] = workers[index]._replace(**changes)
        return self._replace(workers=tuple(workers))

    def idle(self, index: int) -> State:
        return self.with_worker(index, stage="idle", token="", fencing_token=0, told_to_stop=False)

    def with_messages(self, count: int) -> State:
        """More than MESSAGES are like MESSAGES."""
        keys = {name: value for name, value in self.keys.items() if name != f"list {LIST}"}
        if count:
            keys[f"list {LIST}"] = [JOB] * min(count, MESSAGES)
        return self._replace(keys=keys)


def finish(fencing_token: int, status: str) -> Argument:
    return {
        "id": JOB,
        "fencing_token": fencing_token,
        "status": status,
        "model": "",
        "ttl_ms": TTL,
        "tokens": TOOK,
    }
