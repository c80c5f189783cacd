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
LEADS = {"string led_by": LEADER, "string interactive_room": '{"":1}'}  # where another runs, jobs are held
OTHER = "job_2"  # an interactive one of nobody in particular


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


def beside_other(keys: Keys) -> Keys:
    """The same, with OTHER running."""
    record = {"id": OTHER, "status": "running", "seq": "99", "priority": "interactive", "fence": "1"}
    record |= {"attempts": "1", "counted": "1", "metadata": "{}", "model": "m", "enqueued_at": "0"}
    places = keys.get("hash interactive_outstanding", {})
    indexes = {f"zset {name}": {OTHER: "99"} for name in ("jobs", "status:running", "leases")}
    with_it = {name: {**keys.get(name, {}), **index} for name, index in indexes.items()}
    return {
        **keys,
        **with_it,
        f"hash job:{OTHER}": record,
        "hash interactive_outstanding": {**places, "": "1"},
    }


def without_other(keys: Keys, before: Keys) -> Keys:
    """The same, as if OTHER had never been. before: the keys before it was there."""
    left: Keys = {}
    for name, value in keys.items():
        if name == "hash ended":
            value = before.get(name, {})
        elif isinstance(value, dict):
            value = {member: of for member, of in value.items() if member not in (OTHER, "")}
        if value and name != f"hash job:{OTHER}":
            left[name] = value
    return left


def finish(fencing_token: int, status: str, job: str = JOB) -> Argument:
    return {
        "id": job,
        "fencing_token": fencing_token,
        "status": status,
        "model": "",
        "ttl_ms": TTL,
        "tokens": TOOK,
    }


def claim(worker: str, token: str, model: str) -> Argument:
    return {
        "id": JOB,
        "worker": worker,
        "holder": worker,
        "claim_id": token,
        "lease_ms": LEASE * MS,
        "max_attempts": CAP,
        "ttl_ms": TTL,
        "model": model,
        "isolates": True,
    }
