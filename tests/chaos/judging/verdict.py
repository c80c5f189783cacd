"""Whether everything that was accepted has ended, once, and as it had to.

Each kind of promise is a function that waits for its ends and gives a Tally; PROMISES lists those that can be
looked at on the way. Webhooks are looked at once, in the end: one that comes again late counts too.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import redis

from tasks.base.errors import JobNotFound, StoreUnavailable
from tasks.records.batch import ENDED, BatchStatus
from tasks.records.job import TERMINAL, Status
from tasks.store.jobs import JobStore
from tests.chaos.clients.client import Client
from tests.chaos.clients.load import Accepted, Expected, Load, Order

LOOK_S = 0.1
CANCELLED = "batch_cancelled"  # of a line that did not run to its end
EMPTY = ("status:queued", "status:running", "leases", "window_leases", "batches:active")
# Patterns: of jobs that wait for any model, and for each.
EMPTY_OF_EACH_LANE = ("pending:*", "held:*", "interactive_held:*")


@dataclass
class Tally:
    """How many promises were looked at, how many not kept, how many kept twice, and what else is wrong.

    submitted: jobs and lines of batches. pending: what may still come, a line for each.
    """

    submitted: int = 0
    webhooks: int = 0
    lost: int = 0
    doubled: int = 0
    troubles: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.submitted + other.submitted,
            self.webhooks + other.webhooks,
            self.lost + other.lost,
            self.doubled + other.doubled,
            self.troubles + other.troubles,
            self.pending + other.pending,
        )


class Ends:
    """Hears how often each accepted job is said to have ended, from the server, as a gateway would."""

    ID = "chaos"

    def __init__(self, store: JobStore, accepted: Accepted) -> None:
        self._store, self._accepted = store, accepted
        self._watched: set[str] = set()
        self._stopping = threading.Event()
        self.counts: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._listen, name="ends")
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _listen(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._store.db.redis.pubsub(ignore_subscribe_messages=True) as events:
                    events.subscribe(f"{self._store.db.prefix}events:{self.ID}")
                    while not self._stopping.is_set():
                        self._watch()
                        if message := events.get_message(timeout=LOOK_S):
                            job_id, status = message["data"].split(" ", 2)[:2]
                            self.counts[job_id] += job_id.startswith("job_") and status in TERMINAL
            except (redis.RedisError, StoreUnavailable):  # an outage is none of its business
                self._stopping.wait(LOOK_S)

    def _watch(self) -> None:
        """Wait for what was accepted since; of what has ended by then another end is not heard."""
        for job_id in list(self._accepted.jobs.keys() - self._watched):
            with suppress(JobNotFound):
                self._store.watch(self._store.get(job_id), self.ID)
            self._watched.add(job_id)


def jobs(load: Load, client: Client, until: float) -> Tally:
    """Every single job has ended as expected."""
    tally = Tally()
    for job_id, expected in list(load.accepted.jobs.items()):
        if job_id in load.accepted.judged:
            continue
        record = client.get(f"/v1/jobs/{job_id}")
        while record["status"] not in TERMINAL and time.monotonic() < until:
            time.sleep(LOOK_S)
            record = client.get(f"/v1/jobs/{job_id}")
        if record["status"] not in TERMINAL:
            tally.pending.append(f"{job_id} is {record['status']} for ever")
            continue
        load.accepted.judged.add(job_id)
        tally.submitted += 1
        status, came = record["status"], _ended(record["result"], record["error"])
        if not expected.allows(status, came.text, came.code):
            tally.troubles.append(f"{job_id}: {status}, {came}, not {expected}")
        elif status == Status.SUCCEEDED and not expected.answered_by(record["model"] or ""):
            tally.troubles.append(f"{job_id}: answered by {record['model']}, not {expected.model}")
        elif job_id in load.accepted.asked:
            load.accepted.asked[job_id] = f"job.{status}"
    return tally


def repeats(load: Load, client: Client, _until: float) -> Tally:
    """No repeated request has made a second job.

    While the load runs, one may be listed before its client has heard of it, which takes as long as an
    outage: it is then looked at again.
    """
    accepted = load.accepted
    unknown = listed(client, load.run) - accepted.jobs.keys() - accepted.unknown
    give_up = time.monotonic() + load.patience_s
    while load.busy and unknown - accepted.jobs.keys() and time.monotonic() < give_up:
        time.sleep(LOOK_S)
    unknown -= accepted.jobs.keys()
    accepted.unknown |= unknown
    return Tally(doubled=len(unknown), troubles=[f"{one} was never accepted" for one in sorted(unknown)])


def batches(load: Load, client: Client, until: float) -> Tally:
    """Every batch has ended, and its files have each custom_id once."""
    total = Tally()
    for order in load.accepted.batches:
        if order.judged:
            continue
        record = client.get(f"/v1/batches/{order.id}")
        while record["status"] not in ENDED and time.monotonic() < until:
            time.sleep(LOOK_S)
            record = client.get(f"/v1/batches/{order.id}")
        if record["status"] in ENDED:
            order.judged = True
            total += judged(client, order, record)
            if record["status"] == BatchStatus.CANCELLED and order.cancelled:
                load.accepted.asked[order.id] = f"batch.{BatchStatus.CANCELLED}"
            elif record["status"] != BatchStatus.COMPLETED:
                total.troubles.append(f"{order.id}: {record['status']}")
        else:
            stuck = f"{order.id} is stuck: {record['status']}, {record['request_counts']}"
            total.pending += [stuck] * len(order.lines)
    return total


def webhooks(load: Load, client: Client, until: float) -> Tally:
    """Each job and batch that has ended and asked for it is told of, signed, and under one webhook-id."""
    waiting = "/v1/webhooks/deliveries?status=pending&limit=1"
    while client.get(waiting)["data"] and time.monotonic() < until:
        time.sleep(LOOK_S)
    ended = load.accepted.judged | {order.id for order in load.accepted.batches if order.judged}
    asked = load.accepted.asked.keys() & ended
    missing, twice = sorted(asked - load.hooks.told.keys()), load.hooks.twice()
    troubles = [f"no webhook came of {object_id}" for object_id in missing]
    troubles += [f"{object_id} was told of under several ids" for object_id in twice]
    troubles += [f"{one['id']} is pending for ever" for one in client.get(waiting)["data"]]
    troubles += load.hooks.wrong(load.accepted.asked, client.get("/v1/webhooks/secret")["current"])
    return Tally(webhooks=len(asked), lost=len(missing), doubled=len(twice), troubles=troubles)


PROMISES: tuple[Callable[[Load, Client, float], Tally], ...] = (jobs, batches, repeats)


def so_far(load: Load, client: Client) -> Tally:
    """Of what has ended and was not looked at before."""
    return sum((promise(load, client, 0.0) for promise in PROMISES), Tally())


def verdict(store: JobStore, load: Load, ends: Ends, limit_s: float) -> Tally:
    """Of all the rest. Waits so long at most; what has not ended by then is lost."""
    until = time.monotonic() + limit_s
    client = load.client()
    try:
        total = sum((promise(load, client, until) for promise in PROMISES), Tally(troubles=load.troubles))
        total += webhooks(load, client, until)
    finally:
        client.close()
    total.submitted += len(total.pending)
    total.lost += len(total.pending)
    total.troubles += sorted(set(total.pending))
    twice = [job_id for job_id, count in ends.counts.items() if count > 1]
    total.doubled += len(twice)
    total.troubles += [f"{job_id} ended twice" for job_id in twice]
    total.troubles += left(store)
    return total


def judged(client: Client, order: Order, record: dict[str, Any]) -> Tally:
    """What the files of an ended batch say."""
    tally = Tally(len(order.lines))
    entries = client.lines(record["output_file_id"]) + client.lines(record["error_file_id"])
    seen = Counter(entry["custom_id"] for entry in entries)
    tally.lost = sum(seen[custom_id] == 0 for custom_id in order.lines)
    tally.doubled = sum(count - 1 for count in seen.values())
    tally.troubles += [
        f"{order.id} has {one}, which it never had" for one in seen.keys() - order.lines.keys()
    ]
    for entry in entries:
        expected, came = order.lines.get(entry["custom_id"]), _said(entry)
        if order.cancelled and came.code == CANCELLED:
            continue
        if expected is not None and (came != expected or not expected.answered_by(came.model)):
            tally.troubles.append(f"{order.id} {entry['custom_id']}: {came}, not {expected}")
    counts = record["request_counts"]
    total, ended = counts["total"], counts["completed"] + counts["failed"]
    # Lines of a cancelled batch that were never sent are neither.
    if total != len(order.lines) or (ended > total if order.cancelled else ended != total):
        tally.troubles.append(f"{order.id} counted {counts}, not {len(order.lines)}")
    return tally


def _said(entry: dict[str, Any]) -> Expected:
    if entry["error"] is not None:
        return Expected(code=entry["error"]["code"])
    body = entry["response"]["body"]
    if entry["response"]["status_code"] != 200:
        return Expected(code=body["error"]["code"])
    return Expected(text=body["choices"][0]["message"]["content"], model=body.get("model") or "")


def _ended(result: dict[str, Any] | None, error: dict[str, Any] | None) -> Expected:
    if error is not None:
        return Expected(code=error["code"])
    return Expected(text=(result or {}).get("text", ""))


def listed(client: Client, run: str) -> set[str]:
    """All jobs of the run that there are."""
    found: set[str] = set()
    after = ""
    while True:
        try:
            answer = client.get(f"/v1/jobs?limit=100&metadata[run]={run}{after}")
        except httpx.HTTPStatusError as error:
            if after and error.response.status_code == httpx.codes.BAD_REQUEST:
                return found  # the job `after` has been dropped meanwhile, and so has all that is older
            raise
        found |= {job["id"] for job in answer["data"]}
        if not answer["has_more"]:
            return found
        after = f"&after={answer['last_id']}"


def left(store: JobStore) -> list[str]:
    """What a stack without work must not hold any more, of no model's queue."""
    redis, prefix = store.db.redis, store.db.prefix
    of_lanes = (key for pattern in EMPTY_OF_EACH_LANE for key in redis.scan_iter(prefix + pattern, 1000))
    names = (*EMPTY, *sorted({key.removeprefix(prefix) for key in of_lanes}))
    rest = {name: redis.zrange(prefix + name, 0, -1) for name in names}
    for name in ("outstanding", "held", "interactive_outstanding", "interactive_held"):
        rest[name] = redis.hgetall(prefix + name)
    return [f"left in {name}: {what}" for name, what in rest.items() if what]
