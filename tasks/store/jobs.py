"""The job store: every change of a record is one Lua script, so that it happens whole or not at all.

The scripts are in the folder lua; those of lua/lib list the keys. Where a method takes an `owner`, what
belongs to another is not found; None is whoever may see everything. Every method raises StoreUnavailable when
Redis does not answer in time.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from common.json_text import compact
from tasks.base.errors import (
    IdempotencyConflict,
    JobNotFinished,
    JobNotFound,
)
from tasks.base.queue_names import QUEUES, list_key
from tasks.base.settings import Settings
from tasks.records.claim import Claim
from tasks.records.job import CHANGING, Job, NewJob, Priority, Status, new_job_id, prompt_size, seconds
from tasks.store.database import Database
from tasks.store.script_answers import FULL, IDEMPOTENCY_TTL_MS, earlier, full, no_job
from tasks.store.scripts import Argument, answering, pairs
from tasks.store.stored_request import fitting, joined, result_bytes, split, whole_jobs

TEXT_TTL_MS = 3600 * 1000  # of a running job's text since its last token: it is in the record at the end

LOOK_ENTRIES = 2000  # of indexes, looked at by one call for a page: 2 ms in which Redis serves nobody else
MOST_LOOKS = 20  # calls for one page
RECONCILE_LIMIT = 200  # records of each kind in one script: Redis serves nobody else meanwhile


class ClaimRejection(StrEnum):
    """Why a job could not be claimed."""

    UNKNOWN = "unknown"  # no such record any more
    BUSY = "busy"  # running under another claim whose lease holds
    ELSEWHERE = "elsewhere"  # it waits now in the queue of the model that it asks for
    DONE = "done"  # the record is terminal, perhaps since this very claim


class Beat(StrEnum):
    """What a heartbeat says of one running job."""

    OK = "ok"
    STREAMING = "streaming"  # ok, and a client reads the text
    CANCEL = "cancel"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class TextChunk:
    """New text of a running job. before: bytes of text before it; message: what is published."""

    job_id: str
    fencing_token: int
    before: int
    text: str
    message: str


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What one reconcile did; full: there may be more of it to do at once. empty: lists without a message."""

    requeued: int
    lost: int
    expired: int
    resent: int
    dropped: int
    full: bool
    empty: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """last_id: the id to pass as `after` for the next page."""

    jobs: tuple[Job, ...]
    has_more: bool
    last_id: str | None


class JobStore:
    """Thread-safe; one per process."""

    def __init__(self, settings: Settings, timeout_s: float | None = None, name: str = "") -> None:
        """timeout_s: of Redis's answers; None is the one of its URL. name: of the connections, for claims."""
        self.db = Database.connect(settings, timeout_s, name)
        self._settings = settings
        self._redis = self.db.redis
        self._prefix = self.db.prefix
        self._ttl_ms = self.db.ttl_ms

    def close(self) -> None:
        self.db.close()

    def create(self, new: NewJob) -> Job:
        """Store a job and send its message, or defer it until its owner's share allows it.

        Gives the earlier job of the same idempotency key. Raises IdempotencyConflict and LimitReached. Safe
        to repeat with the same NewJob.
        """
        [made] = self.create_all(new, [{}])
        return made

    def create_all(self, new: NewJob, variants: Sequence[Mapping[str, Any]]) -> list[Job]:
        """Store all jobs of one request, or none; as create(), which only a single job may have a key for.

        variants: of each job the fields of its request that are not those of new.request. What the jobs have
        in common is stored once, and so is each of their prompts.
        """
        assert len(variants) == 1 or new.idempotency_key is None, "a key stands for one job"
        ids = [new.id, *(new_job_id() for _ in variants[1:])]
        requests = [{**new.request, **variant} for variant in variants]
        parts = split(new.request, variants)
        deadline_ms = None if new.deadline is None else round(new.deadline * 1000)
        sizes = [prompt_size(request) for request in requests]
        jobs = [
            {"id": job_id, "size": size, "prompt": prompt_key}
            for job_id, size, prompt_key in zip(ids, sizes, parts.prompt_keys, strict=True)
        ]
        arguments = {
            "priority": new.priority,
            "model": new.model or "",
            "metadata": compact(new.metadata),
            "deadline_ms": deadline_ms,
            "owner": new.owner,
            "streaming": new.streaming,
            "waiter": new.waiter,
            "traceparent": new.traceparent,
            "keep_ms": None if new.keep_s is None else round(new.keep_s * 1000),
            "webhook": None if new.webhook is None else new.webhook.stored(),
            "max_tokens": new.request.get("max_tokens", 0),
            "reserved_bytes": result_bytes(new.request),
            "idempotency_key": new.idempotency_key or "",
            "body_hash": new.body_hash,
            "idempotency_ttl_ms": IDEMPOTENCY_TTL_MS,
            "max_queued": self._settings.max_queued,
            "max_stored_bytes": self._settings.max_stored_bytes,
            "jobs": jobs,
        }
        shared = [parts.common, *parts.prompts] if parts.common else []
        answer, *values = self._run("jobs/create", arguments, *parts.own, *shared)
        if answer == "conflict":
            raise IdempotencyConflict(values[0])
        if answer in FULL:
            raise full(answer, values[0])
        if answer == "existing":
            return [self._job(values[0])]
        now, model_queue = values
        return [
            Job.created(new, job_id, request, deadline_ms, int(now), model_queue)
            for job_id, request in zip(ids, requests, strict=True)
        ]

    def earlier(self, key: str | None, body_hash: str) -> Job | None:
        """The job that came with this idempotency key; raises IdempotencyConflict for another body's."""
        record = earlier(self.db.scripts, "job", key, body_hash)
        return self._whole(record) if record else None

    def get(self, job_id: str, owner: str | None = None) -> Job:
        """The record; raises JobNotFound."""
        with answering():
            fields = self._redis.hgetall(self._key(job_id))
        if not fields or owner not in (None, fields.get("owner")):
            raise no_job(self.db, job_id, owner)
        return self._whole(fields)

    def refresh(self, job: Job) -> Job:
        """The same job as it is now, read without its request, which never changes; raises JobNotFound."""
        with answering():
            values = self._redis.hmget(self._key(job.id), CHANGING)
        return _refreshed(job, values)

    def watch(self, job: Job, gateway: str, *, streaming: bool = False) -> Job:
        """As refresh(); from now on the gateway is told of its end. streaming: and of each change, and of its
        text, which its worker begins to publish.
        """
        return _refreshed(job, self._run("jobs/watch", job.id, gateway, int(streaming), *CHANGING))

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
        look: dict[str, Any] = {
            "status": status,
            "after": after,
            "limit": limit,
            "owner": owner,
            "most": LOOK_ENTRIES,
            "filters": dict(metadata or {}),
        }
        for _ in range(MOST_LOOKS):
            answer = self._run("jobs/list", look)
            if answer[0] == "unknown":
                raise JobNotFound(after or "")
            more, look["below"], last, ids = answer[1] == 1, answer[2], answer[3], answer[4:]
            if ids or not more:
                break
        with answering(), self._redis.pipeline(transaction=False) as pipe:
            for job_id in ids:
                pipe.hgetall(self._key(job_id))
            records = pipe.execute()
        # A job deleted between the two calls has an empty hash.
        present = [record for record in records if record]
        fit = fitting(present)
        if len(fit) < len(present):
            more, last = True, fit[-1]["id"]
        jobs = tuple(whole_jobs(self._redis, self._prefix, fit))
        return Page(jobs, more, last or (ids[-1] if ids else None))

    def cancel(self, job_id: str, owner: str | None = None) -> Job:
        """End a queued job, flag a running one, leave an ended one; raises JobNotFound."""
        record = self._run("jobs/cancel", job_id, self._ttl_ms, owner)
        if not record:
            raise no_job(self.db, job_id, owner)
        return self._job(record)

    def delete(self, job_id: str, owner: str | None = None) -> None:
        """Drop an ended job; raises JobNotFound or JobNotFinished."""
        answer = self._run("jobs/delete", job_id, owner)
        if answer == "unknown":
            raise no_job(self.db, job_id, owner)
        if answer == "active":
            raise JobNotFinished(job_id)

    def claim(
        self, job_id: str, worker: str, claim_id: str, isolates: bool = False, model: str = ""
    ) -> Claim | ClaimRejection:
        """Take a job for `worker`. claim_id is unique to this claim and makes repeating it safe.

        isolates: this worker runs a last attempt alone, see Claim.isolated. model: what it serves. A job for
        another model that is known waits for that one from now on.
        """
        arguments = {
            "id": job_id,
            "worker": worker,
            "holder": self.db.name,
            "claim_id": claim_id,
            "lease_ms": self._settings.lease_ms,
            "max_attempts": self._settings.max_attempts,
            "ttl_ms": self._ttl_ms,
            "model": model,
            "isolates": isolates,
        }
        answer = self._run("jobs/claim", arguments)
        if answer[0] != "claimed":
            return ClaimRejection(answer[0])
        return _claim(job_id, *answer[1:])

    def start_isolated(self, job_id: str, fencing_token: int) -> bool:
        """Count a last attempt, now that it has the engine to itself. False: the claim is no longer ours."""
        return bool(self._run("jobs/start_isolated", job_id, fencing_token) == 1)

    def append_text(self, chunks: Sequence[TextChunk]) -> list[bool]:
        """Keep and publish chunks of texts. False for each whose claim is no longer ours. Safe to repeat."""
        flat = [value for c in chunks for value in (c.job_id, c.fencing_token, c.before, c.text, c.message)]
        return [answer == 1 for answer in self._run("jobs/append_text", TEXT_TTL_MS, *flat)]

    def text_so_far(self, job_id: str) -> str:
        """The text of a running job with a subscriber; empty for any other."""
        with answering():
            return self._redis.get(f"{self._prefix}text:{job_id}") or ""

    def heartbeat(self, claims: Sequence[tuple[str, int]]) -> list[Beat]:
        """Renew the leases of (job id, fencing token) pairs in one round trip; answers in their order."""
        flat = [value for pair in claims for value in pair]
        return [Beat(answer) for answer in self._run("jobs/heartbeat", self._settings.lease_ms, *flat)]

    def finish(
        self,
        job_id: str,
        fencing_token: int,
        status: Status,
        result: Mapping[str, Any] | None = None,
        error: Mapping[str, Any] | None = None,
        model: str = "",
    ) -> bool:
        """Write the end of a job. False: the claim is no longer ours and nothing was written.

        model: the one that ran it, for a job that names none.
        """
        end = {
            "id": job_id,
            "fencing_token": fencing_token,
            "status": status,
            "model": model,
            "ttl_ms": self._ttl_ms,
            "tokens": (result or {}).get("usage", {}).get("total_tokens", 0),
        }
        return bool(self._run("jobs/finish", end, _dump(result), _dump(error)) == 1)

    def requeue(self, job_id: str, fencing_token: int) -> bool:
        """Queue a running job again without counting the attempt.

        False: the claim is no longer ours, or the job was cancelled.
        """
        return bool(self._run("jobs/requeue", job_id, fencing_token, self._ttl_ms) == 1)

    def model_queues(self) -> list[str]:
        """Models in whose queues jobs may wait, and "" for the queues of any worker."""
        with answering():
            return ["", *sorted(self._redis.smembers(f"{self._prefix}lanes"))]

    def reconcile(self, empty: Collection[str] = ()) -> Reconciled:
        """One pass over expired leases, passed deadlines, lost messages and records past their time.

        empty: of the pass before, if this one goes on with its work.
        """
        s = self._settings
        gap_ms = s.lease_ms + 2 * int(s.reconcile_s * 1000)
        queues = [
            (kind, model_queue, list_key(s, kind, model_queue))
            for model_queue in self.model_queues()
            for kind in QUEUES
        ]
        arguments = {
            "max_attempts": s.max_attempts,
            "resend_after_ms": int(s.resend_after_s * 1000),
            "ttl_ms": self._ttl_ms,
            "lease_ms": s.lease_ms,
            "gap_ms": gap_ms,
            "limit": RECONCILE_LIMIT,
            "queues": queues,
            "empty": list(empty),
        }
        counts, found_empty = self._run("queues/reconcile", arguments)
        done = pairs(counts)
        return Reconciled(**{**done, "full": bool(done["full"])}, empty=tuple(found_empty))

    def _job(self, flat: Sequence[str]) -> Job:
        return self._whole(pairs(flat))

    def _whole(self, fields: Mapping[str, str]) -> Job:
        """The job of a hash; raises JobNotFound where it was deleted since that was read."""
        for job in whole_jobs(self._redis, self._prefix, [fields]):
            return job
        raise JobNotFound(fields["id"])

    def _key(self, job_id: str) -> str:
        return f"{self._prefix}job:{job_id}"

    def _run(self, name: str, *args: Argument) -> Any:
        return self.db.scripts.run(name, *args)


def _refreshed(job: Job, values: Sequence[str | None]) -> Job:
    """values: of CHANGING, none of them, or nothing, of a job that is gone."""
    fields = {name: value for name, value in zip(CHANGING, values, strict=False) if value is not None}
    if not fields:
        raise JobNotFound(job.id)
    return Job.from_hash(fields, job.request)


def new_claim_id() -> str:
    """A unique id of one claim, which makes repeating it safe."""
    return uuid.uuid4().hex


def _dump(value: Mapping[str, Any] | None) -> str:
    return "" if value is None else compact(value)


def _claim(job_id: str, head: str, own: str, shared: str, prompt: str) -> Claim:
    """From what claim.lua returns."""
    fields = json.loads(head)
    return Claim(
        job_id=job_id,
        fencing_token=fields["fencing_token"],
        attempts=fields["attempts"],
        request=joined(own, shared, prompt),
        model=fields["model"] or None,
        priority=Priority(fields["priority"]),
        deadline=seconds(fields["deadline"]),
        created_at=fields["created_at"] / 1000,
        claimed_at=fields["now"] / 1000,
        streaming=fields["streaming"],
        queued_at=fields["queued_at"] / 1000,
        batch_id=fields["batch"] or None,
        traceparent=fields["traceparent"],
        isolated=fields["isolated"],
    )
