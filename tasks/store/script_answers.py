"""Answers alike for jobs, batches and files: what is full or missing, what an idempotency key gave."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.base.errors import (
    BudgetSpent,
    FilesLimit,
    IdempotencyConflict,
    JobNotFound,
    LimitReached,
    LineOfBatch,
    StorageLimit,
)
from tasks.store.database import Database
from tasks.store.scripts import Scripts, answering, pairs

IDEMPOTENCY_TTL_MS = 24 * 3600 * 1000  # a client that retries does so within a day
FULL = frozenset({"queue", "jobs", "batches", "tokens", "storage"})  # answers of scripts that take no more


def full(what: str, values: Sequence[str]) -> LimitReached:
    """The error for what a script says is full: its limit, and ms until it has room."""
    limit, wait_ms = (int(value) for value in values)
    if what == "tokens":
        return BudgetSpent(limit, wait_ms / 1000)
    if what == "storage":
        return StorageLimit(limit)
    reasons = {
        "jobs": "jobs of this API key are waiting or running",
        "batches": "batches of this API key have not ended",
        "queue": "jobs are queued",
    }
    return LimitReached(f"{limit} {reasons[what]}, and no more are taken until some have ended")


def files_full(values: Sequence[str]) -> FilesLimit:
    """The error for what files_full in tasks/store/lua/lib/files.lua says."""
    files, used, more, most_files, most_bytes = (f"{int(value):,}" for value in values)
    return FilesLimit(
        f"{files} files with {used} bytes are kept already, and {more} bytes more were to come, of at most "
        f"{most_files} files with {most_bytes} bytes: delete some, or wait for the end of batches"
    )


def no_job(database: Database, job_id: str, owner: str | None) -> JobNotFound:
    """The error for an id without a record: it may be that of a line of a batch which the caller may see."""
    digits, dash, line = job_id.removeprefix("job_").partition("-")
    if dash:
        batch_id = f"batch_{digits}"
        with answering():
            of = database.redis.hget(f"{database.prefix}batch:{batch_id}", "owner")
        if of is not None and owner in (None, of):
            return LineOfBatch(batch_id, line)
    return JobNotFound(job_id)


def earlier(scripts: Scripts, kind: str, key: str | None, body_hash: str) -> dict[str, str]:
    """The record that came with an idempotency key, empty for none; raises IdempotencyConflict."""
    if key is None:
        return {}
    answer, record = scripts.run("jobs/idempotency_lookup", kind, key, body_hash)
    if answer == "conflict":
        raise IdempotencyConflict(record)
    return pairs(record)
