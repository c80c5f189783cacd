"""The job store: every change of a record is one Lua script, so that it happens whole or not at all.

The scripts are in tasks/lua; common.lua lists the keys. Where a method takes an `owner`, what belongs to
another is not found; None is whoever may see everything. Every method raises StoreUnavailable when Redis
does not answer in time.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tasks.errors import (
    BudgetSpent,
    FilesLimit,
    IdempotencyConflict,
    JobNotFinished,
    JobNotFound,
    LimitReached,
    StorageLimit,
)
from tasks.job import CHANGING, Job, NewJob, Priority, Status, new_job_id, preview
from tasks.queues import list_key
from tasks.redis_clients import make_client
from tasks.redis_options import RedisOptions
from tasks.scripts import Scripts, answering, pairs
from tasks.settings import Settings
from tasks.stored_request import dump, fitting, joined, result_bytes, split, whole_jobs

IDEMPOTENCY_TTL_MS = 24 * 3600 * 1000  # a client that retries does so within a day
TEXT_TTL_MS = 3600 * 1000  # of a running job's text since its last token: it is in the record at the end
FULL = frozenset({"queue", "jobs", "batches", "tokens", "storage"})  # answers of scripts that take no more
LOOK_RECORDS = 1000  # looked at by one call for a page: some ms in which Redis serves nobody else
MOST_LOOKS = 20  # calls for one page
RECONCILE_LIMIT = 200  # records of each kind in one script: Redis serves nobody else meanwhile


class Refusal(StrEnum):
    """Why a claim was refused."""

    UNKNOWN = "unknown"  # no such record any more
    BUSY = "busy"  # running under another claim whose lease holds
    DONE = "done"  # the record is terminal, perhaps since this very claim


class Beat(StrEnum):
    """What a heartbeat says of one running job."""

    OK = "ok"
    WATCHED = "watched"  # ok, and somebody listens
    CANCEL = "cancel"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Claim:
    """A job this worker holds. Times are Unix seconds by the clock of Redis."""

    job_id: str
    fence: int
    attempts: int
    request: dict[str, Any]
    model: str | None
    priority: Priority
    deadline: float | None
    created_at: float
    claimed_at: float
    preview: str
    watched: bool = False  # somebody listened already when it was claimed
    queued_at: float = 0.0  # when its message was last sent
    batch_id: str | None = None
    traceparent: str = ""
    alone: bool = False  # its last attempt, which counts from begin() on, with nothing else in the engine
    lane: str = ""


@dataclass(frozen=True, slots=True)
class TokenPart:
    """A part of a running job's text: bytes of text before it, and what is published."""

    job_id: str
    fence: int
    before: int
    text: str
    message: str


@dataclass(frozen=True, slots=True)
class Unsent:
    """A queued job whose Celery message must be sent. lane: as in Job."""

    job_id: str
    priority: Priority
    preview: str
    lane: str = ""

    @classmethod
    def of(cls, job: Job) -> Unsent:
        return cls(job.id, job.priority, preview(job.request), job.lane)


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What one reconcile did; full: there may be more of it to do at once."""

    requeued: int
    lost: int
    expired: int
    resent: int
    dropped: int
    full: bool
    unsent: tuple[Unsent, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """last_id: behind it the next page begins."""

    jobs: tuple[Job, ...]
    has_more: bool
    last_id: str | None


class JobStore:
    """Thread-safe; one per process."""

    def __init__(self, settings: Settings, timeout_s: float | None = None) -> None:
        """timeout_s: of Redis's answers; None is the one of its URL."""
        self._settings = settings
        self.prefix = settings.key_prefix
        self.redis: Any = connect(settings, timeout_s)  # typed, every answer would be perhaps an awaitable
        self.scripts = Scripts(self.redis, self.prefix)

    def close(self) -> None:
        self.redis.close()

    def create(self, new: NewJob) -> tuple[Job, bool]:
        """Store a queued job; the flag says whether its message must be sent.

        Not when the idempotency key gave an earlier one, nor when a bulk job is held back until its owner's
        share allows it. Raises IdempotencyConflict and LimitReached. Safe to repeat with the same NewJob.
        """
        [made] = self.create_all(new, [{}])
        return made

    def create_all(self, new: NewJob, variants: Sequence[Mapping[str, Any]]) -> list[tuple[Job, bool]]:
        """Store all jobs of one request, or none; as create(), which only a single job may have a key for.

        variants: of each job the fields of its request that are not those of new.request. What the jobs have
        in common is stored once, and so is each of their prompts.
        """
        assert len(variants) == 1 or new.idempotency_key is None, "a key stands for one job"
        ids = [new.id, *(new_job_id() for _ in variants[1:])]
        requests = [{**new.request, **variant} for variant in variants]
        parts = split(new.request, variants)
        previews = [preview(request) for request in requests]
        deadline_ms = None if new.deadline is None else round(new.deadline * 1000)
        further = zip(ids[1:], parts.own[1:], previews[1:], parts.places[1:], strict=True)
        answer, *told = self._run(
            "create",
            new.id,
            new.priority.value,
            new.model or "",
            parts.own[0],
            _dump(new.metadata),
            "" if deadline_ms is None else deadline_ms,
            previews[0],
            new.idempotency_key or "",
            new.body_hash,
            IDEMPOTENCY_TTL_MS,
            "1" if new.watched else "",
            "" if new.keep_s is None else round(new.keep_s * 1000),
            new.owner,
            new.request.get("max_tokens", 0),
            self._settings.max_queued,
            "" if new.webhook is None else new.webhook.stored(),
            new.traceparent,
            self._settings.max_stored_bytes,
            result_bytes(new.request),
            parts.common,
            len(parts.prompts),
            *parts.prompts,
            parts.places[0],
            *itertools.chain.from_iterable(further),
        )
        if answer == "conflict":
            raise IdempotencyConflict(told[0])
        if answer in FULL:
            raise full(answer, told[0])
        if answer == "existing":
            return [(self._job(told[0]), False)]
        now, lane, *to_send = told
        return [
            (Job.created(new, job_id, request, deadline_ms, int(now), lane), flag == "1")
            for job_id, request, flag in zip(ids, requests, to_send, strict=True)
        ]

    def earlier(self, key: str | None, body_hash: str) -> Job | None:
        """The job that came with this idempotency key; raises IdempotencyConflict for another body's."""
        record = earlier(self.scripts, "job", key, body_hash)
        return self._whole(record) if record else None

    def get(self, job_id: str, owner: str | None = None) -> Job:
        """The record; raises JobNotFound."""
        with answering():
            fields = self.redis.hgetall(self._key(job_id))
        if not fields or owner not in (None, fields.get("owner")):
            raise JobNotFound(job_id)
        return self._whole(fields)

    def refresh(self, job: Job) -> Job:
        """The same job as it is now, read without its request, which never changes; raises JobNotFound."""
        with answering():
            values = self.redis.hmget(self._key(job.id), CHANGING)
        fields = {name: value for name, value in zip(CHANGING, values, strict=True) if value is not None}
        if not fields:
            raise JobNotFound(job.id)
        return Job.from_hash(fields, job.request)

    def page(
        self,
        limit: int,
        status: Status | None = None,
        after: str | None = None,
        metadata: Mapping[str, str] | None = None,
        owner: str | None = None,
    ) -> Page:
        """Newest first, beginning below the job `after`, some megabytes at most, or one record.

        With filters, a page may have fewer than there are, or none, where few of those looked at fit; the
        next begins behind `last_id`. Raises JobNotFound for an unknown `after`.
        """
        filters = [text for pair in (metadata or {}).items() for text in pair]
        wanted, below = status.value if status else "", ""
        for _ in range(MOST_LOOKS):
            look = wanted, after or "", below, limit, owner or "", LOOK_RECORDS
            answer = self._run("list", *look, *filters)
            if answer[0] == "unknown":
                raise JobNotFound(after or "")
            more, below, last, ids = answer[1] == 1, answer[2], answer[3], answer[4:]
            if ids or not more:
                break
        with answering(), self.redis.pipeline(transaction=False) as pipe:
            for job_id in ids:
                pipe.hgetall(self._key(job_id))
            records = pipe.execute()
        # A job deleted between the two calls has an empty hash.
        present = [record for record in records if record]
        fit = fitting(present)
        if len(fit) < len(present):
            more, last = True, fit[-1]["id"]
        jobs = tuple(whole_jobs(self.redis, self.prefix, fit))
        return Page(jobs, more, last or (ids[-1] if ids else None))

    def cancel(self, job_id: str, owner: str | None = None) -> Job:
        """End a queued job, flag a running one, leave an ended one; raises JobNotFound."""
        record = self._run("cancel", job_id, self.ttl_ms, owner or "")
        if not record:
            raise JobNotFound(job_id)
        return self._job(record)

    def delete(self, job_id: str, owner: str | None = None) -> None:
        """Drop an ended job; raises JobNotFound or JobNotFinished."""
        answer = self._run("delete", job_id, owner or "")
        if answer == "unknown":
            raise JobNotFound(job_id)
        if answer == "active":
            raise JobNotFinished(job_id)

    def claim(
        self, job_id: str, worker: str, token: str, last_alone: bool = False, model: str = ""
    ) -> Claim | Refusal | Unsent:
        """Take a job for `worker`. token is unique to this claim and makes repeating it safe.

        last_alone: the worker does as Claim.alone says. model: what it serves. A job for another model that
        is known waits for that one from now on, and its message must be sent.
        """
        s = self._settings
        limits = (s.lease_ms, s.max_attempts, self.ttl_ms)
        answer = self._run("claim", job_id, worker, token, *limits, "1" if last_alone else "", model)
        if answer[0] == "elsewhere":
            _, lane, other, line = answer
            return Unsent(job_id, Priority(other), line, lane)
        if answer[0] != "claimed":
            return Refusal(answer[0])
        fence, attempts, request, model, priority, deadline, created_at, now, *rest = answer[1:]
        shown, watched, queued_at, batch_id, traceparent, alone, lane, *shared = rest
        return Claim(
            job_id=job_id,
            fence=int(fence),
            attempts=int(attempts),
            request=joined(request, *shared),
            model=model or None,
            priority=Priority(priority),
            deadline=int(deadline) / 1000 if deadline else None,
            created_at=int(created_at) / 1000,
            claimed_at=int(now) / 1000,
            preview=shown,
            watched=watched == "1",
            queued_at=int(queued_at) / 1000,
            batch_id=batch_id or None,
            traceparent=traceparent,
            alone=alone == "1",
            lane=lane,
        )

    def begin(self, job_id: str, fence: int) -> bool:
        """Count a last attempt, now that it has the engine to itself. False: the claim is no longer ours."""
        return bool(self._run("begin", job_id, fence) == 1)

    def watch(self, job_id: str, owner: str | None = None) -> Job:
        """Ask for the text of a job as it comes, and give its record; raises JobNotFound."""
        record = self._run("watch", job_id, owner or "")
        if not record:
            raise JobNotFound(job_id)
        return self._job(record)

    def publish_tokens(self, parts: Sequence[TokenPart]) -> list[bool]:
        """Keep and publish parts of texts. False for each whose claim is no longer ours. Safe to repeat."""
        flat = [value for p in parts for value in (p.job_id, p.fence, p.before, p.text, p.message)]
        return [answer == 1 for answer in self._run("tokens", TEXT_TTL_MS, *flat)]

    def text_so_far(self, job_id: str) -> str:
        """Of a watched job that runs; empty for any other."""
        with answering():
            return self.redis.get(f"{self.prefix}text:{job_id}") or ""

    def heartbeat(self, claims: Sequence[tuple[str, int]]) -> list[Beat]:
        """Renew the leases of (job id, fence) pairs in one round trip; answers in their order."""
        flat = [value for pair in claims for value in pair]
        return [Beat(answer) for answer in self._run("heartbeat", self._settings.lease_ms, *flat)]

    def finish(
        self,
        job_id: str,
        fence: int,
        status: Status,
        result: Mapping[str, Any] | None = None,
        error: Mapping[str, Any] | None = None,
        model: str = "",
    ) -> bool:
        """Write the end of a job. False: the claim is no longer ours and nothing was written.

        model: the one that ran it, for a job that names none.
        """
        end = (status.value, _dump(result), _dump(error), model)
        tokens = (result or {}).get("usage", {}).get("total_tokens", 0)
        return bool(self._run("finish", job_id, fence, *end, self.ttl_ms, tokens) == 1)

    def hand_back(self, job_id: str, fence: int) -> bool:
        """Queue a running job again, its attempt uncounted. True: a message must be sent for it."""
        return bool(self._run("hand_back", job_id, fence, self.ttl_ms) == 1)

    def lanes(self) -> list[str]:
        """Models in whose queues jobs may wait, and "" for the queues of any worker."""
        with answering():
            return ["", *sorted(self.redis.smembers(f"{self.prefix}lanes"))]

    def reconcile(self, waiting: Mapping[tuple[Priority, str], int] | None = None) -> Reconciled:
        """One pass over expired leases, passed deadlines, lost messages and records past their time.

        waiting: messages in each queue of a broker that is not this Redis, by priority and lane.
        """
        s = self._settings
        gap_ms = s.lease_ms + 2 * int(s.reconcile_s * 1000)
        if waiting is None:
            queues = [(p.value, lane, list_key(s, p, lane)) for lane in self.lanes() for p in Priority]
        else:
            queues = [(p.value, lane, str(count)) for (p, lane), count in waiting.items()]
        answer = self._run(
            "reconcile",
            s.max_attempts,
            int(s.resend_after_s * 1000),
            self.ttl_ms,
            s.lease_ms,
            gap_ms,
            RECONCILE_LIMIT,
            *itertools.chain(*queues),
        )
        requeued, lost, expired, resent, dropped, full, *unsent = answer
        each = zip(unsent[::4], unsent[1::4], unsent[2::4], unsent[3::4], strict=True)
        return Reconciled(
            requeued,
            lost,
            expired,
            resent,
            dropped,
            bool(full),
            tuple(Unsent(job_id, Priority(priority), shown, lane) for job_id, priority, shown, lane in each),
        )

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def ttl_ms(self) -> int:
        """How long ended work is kept."""
        return self._settings.result_ttl_s * 1000

    def _job(self, flat: Sequence[str]) -> Job:
        return self._whole(pairs(flat))

    def _whole(self, fields: Mapping[str, str]) -> Job:
        """The job of a hash; raises JobNotFound where it was deleted since that was read."""
        for job in whole_jobs(self.redis, self.prefix, [fields]):
            return job
        raise JobNotFound(fields["id"])

    def _key(self, job_id: str) -> str:
        return f"{self.prefix}job:{job_id}"

    def _run(self, name: str, *args: str | int) -> Any:
        return self.scripts.run(name, *args)


def connect(settings: Settings, timeout_s: float | None = None) -> redis.Redis:
    """A client that answers or fails within timeout_s, and reconnects once by itself.

    It may send a command twice when the connection broke: every script is safe to repeat.
    """
    options = RedisOptions.of(settings.redis_url)
    within_s = options.timeout_s if timeout_s is None else timeout_s
    return make_client(
        options.address,
        decode_responses=True,
        socket_timeout=within_s,
        socket_connect_timeout=within_s,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
        **options.tls,
    )


def full(what: str, told: Sequence[str]) -> LimitReached:
    """The error for what a script says is full: its limit, and ms until it has room."""
    limit, wait_ms = (int(value) for value in told)
    if what == "tokens":
        return BudgetSpent(limit, wait_ms / 1000)
    if what == "storage":
        return StorageLimit(limit)
    said = {
        "jobs": "jobs of this API key are waiting or running",
        "batches": "batches of this API key have not ended",
        "queue": "jobs are queued",
    }
    return LimitReached(f"{limit} {said[what]}, and no more are taken until some have ended")


def files_full(told: Sequence[str]) -> FilesLimit:
    """The error for what files_full in common.lua says."""
    files, held, more, most_files, most_bytes = (f"{int(value):,}" for value in told)
    return FilesLimit(
        f"{files} files with {held} bytes are kept already, and {more} bytes more were to come, of at most "
        f"{most_files} files with {most_bytes} bytes: delete some, or wait for the end of batches"
    )


def earlier(scripts: Scripts, kind: str, key: str | None, body_hash: str) -> dict[str, str]:
    """The record that came with an idempotency key, empty for none; raises IdempotencyConflict."""
    if key is None:
        return {}
    answer, record = scripts.run("earlier", kind, key, body_hash)
    if answer == "conflict":
        raise IdempotencyConflict(record)
    return pairs(record)


def new_token() -> str:
    """A claim token."""
    return uuid.uuid4().hex


def _dump(value: Mapping[str, Any] | None) -> str:
    return "" if value is None else dump(value)
