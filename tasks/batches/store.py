"""The batch store: every change of a batch is one Lua script, beside those of jobs.

Scripts that take a leader's token do nothing once another leads. Every method raises StoreUnavailable
when Redis does not answer in time.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from tasks.base.errors import BatchNotFound, FileNotFound, IdempotencyConflict, LeadLost
from tasks.records.api_key import DEFAULT_MAX_FILES
from tasks.records.batch import WINDOW_S, Batch, Ending, NewBatch
from tasks.records.batch_work import Active, QueueCounts, Uncollected, Work
from tasks.records.job import Priority
from tasks.store.database import Database
from tasks.store.script_answers import FULL, IDEMPOTENCY_TTL_MS, earlier, files_full, full
from tasks.store.scripts import answering, pairs

RESULTS = "results"  # among what is live of a batch: lines that have ended and are in no segment
MOST_CLEANUPS = 4  # looked at in one round
# The fields of a batch that a round needs: many rounds a second read those of all active batches.
WORKED_ON = (
    "id", "seq", "owner", "status", "endpoint", "input_file_id", "priority", "created_at", "expires_at",
    "chunks", "chunk", "place", "validated", "ending", "model",
)  # fmt: skip


class BatchStore:
    """Not bound to one process: the gateway creates and reads batches, the leader works on them."""

    def __init__(self, database: Database) -> None:
        self._settings = database.settings
        self._scripts = database.scripts
        self._run = database.scripts.run
        self._redis = database.redis
        self.prefix = database.prefix
        self._led: dict[str, Batch] = {}  # the last round's, by their JSON: most of them stay as they are
        self._ttl_ms = database.ttl_ms

    # For the gateway

    def create(self, new: NewBatch) -> Batch:
        """Store a batch to validate, or give the earlier one of the idempotency key.

        Raises IdempotencyConflict, LimitReached, FilesLimit and FileNotFound. Safe to repeat with the same
        NewBatch.
        """
        fields: dict[str, str | int] = {
            "endpoint": new.endpoint,
            "priority": new.priority,
            "metadata": json.dumps(dict(new.metadata), ensure_ascii=False),
            "output_expires_s": "" if new.output_expires_s is None else new.output_expires_s,
            "retry_of": new.retry_of or "",
            "dry_run": int(new.dry_run),
            "webhook": "" if new.webhook is None else new.webhook.stored(),
            "default_model": new.default_model,
            "choose_from": json.dumps(new.choose_from),
        }
        if new.max_tokens is not None:
            fields["max_tokens"] = new.max_tokens
        if new.every_model:
            fields["every_model"] = new.every_model
        if new.table is not None:
            fields["table"] = new.table.dumped()
        arguments = {
            "id": new.id,
            "expires_at_ms": None if new.deadline is None else round(new.deadline * 1000),
            "expires_in_ms": WINDOW_S * 1000,
            "idempotency_key": new.idempotency_key or "",
            "body_hash": new.body_hash,
            "idempotency_ttl_ms": IDEMPOTENCY_TTL_MS,
            "input_file_id": new.input_file_id,
            "owner": new.owner,
            "max_files": DEFAULT_MAX_FILES,
            "max_files_bytes": self._settings.max_files_bytes,
            "max_stored_bytes": self._settings.max_stored_bytes,
        }
        further = (value for pair in fields.items() for value in pair)
        answer, record = self._run("batches/create", arguments, *further)
        if answer == "conflict":
            raise IdempotencyConflict(record)
        if answer == "files":
            raise files_full(record)
        if answer in FULL:
            raise full(answer, record)
        if answer == "no_file":
            raise FileNotFound(record)
        return self._now(pairs(record))

    def earlier(self, key: str | None, body_hash: str) -> Batch | None:
        """The batch that came with this idempotency key; raises IdempotencyConflict for another body's."""
        record = earlier(self._scripts, "batch", key, body_hash)
        return self._now(record) if record else None

    def _now(self, record: Mapping[str, str]) -> Batch:
        """The batch of a record that was just read, with what belongs to it unless it is gone by now."""
        batch = Batch.from_hash(record)
        with suppress(BatchNotFound):
            return self.get(batch.id)
        return batch

    def has_leader(self) -> bool:
        """Whether some io worker works on batches."""
        with answering():
            return bool(self._redis.exists(f"{self.prefix}leader"))

    def get(self, batch_id: str, owner: str | None = None) -> Batch:
        """The record, with why lines failed and what is collected; raises BatchNotFound."""
        key = f"{self.prefix}batch:{batch_id}"
        with answering(), self._redis.pipeline() as pipe:
            record, codes, parts = (
                pipe.hgetall(key).hgetall(f"{key}:codes").lrange(f"{key}:parts", 0, -1).execute()
            )
        if not record or owner not in (None, record["owner"]):
            raise BatchNotFound(batch_id)
        return Batch.from_hash(record, codes, parts)

    def page(
        self, limit: int, after: str | None = None, owner: str | None = None
    ) -> tuple[list[Batch], bool]:
        """Newest first, beginning below the batch `after`, and whether there are more.

        Raises BatchNotFound for an unknown `after`.
        """
        below = "+inf"
        index = f"{self.prefix}batches" if owner is None else f"{self.prefix}owner:{owner}:batches"
        with answering():
            if after is not None:
                seq = self._redis.zscore(index, after)
                if seq is None:
                    raise BatchNotFound(after)
                below = f"({seq:.0f}"
            ids = self._redis.zrevrangebyscore(index, below, "-inf", start=0, num=limit + 1)
        with answering(), self._redis.pipeline(transaction=False) as pipe:
            for batch_id in ids[:limit]:
                pipe.hgetall(f"{self.prefix}batch:{batch_id}")
                pipe.hgetall(f"{self.prefix}batch:{batch_id}:codes")
            answers = pipe.execute()
        # A batch that was dropped between the two calls has an empty hash.
        found = zip(answers[::2], answers[1::2], strict=True)
        return [Batch.from_hash(record, codes) for record, codes in found if record], len(ids) > limit

    def stop(self, batch_id: str, how: Ending, owner: str | None = None) -> Batch:
        """Send nothing more of it; an ended batch stays as it is. Raises BatchNotFound."""
        if not self._run("batches/stop", batch_id, how.value, owner):
            raise BatchNotFound(batch_id)
        return self.get(batch_id)

    def delete(self, batch_id: str, owner: str | None = None) -> bool:
        """Drop an ended batch; its files stay. False: it has not ended. Raises BatchNotFound."""
        answer = self._run("batches/delete", batch_id, owner)
        if answer == "unknown":
            raise BatchNotFound(batch_id)
        return bool(answer == "deleted")

    # For the one who leads

    def lead(
        self, token: str, bulk: Mapping[str, int], interactive: Mapping[str, int] | None = None
    ) -> Work | None:
        """Take or keep the lead, and return what there is to do; None while another worker leads.

        bulk, interactive: how many jobs may be in flight, by model queue, "" for queues that are not listed;
        None: none are deferred.
        """
        capacities = json.dumps(bulk), json.dumps(interactive or {})
        answer = self._run("leader/lead", token, *capacities, MOST_CLEANUPS, *WORKED_ON)
        if not answer[0]:
            return None
        found = pairs(answer[1:])
        self._led = {text: self._led.get(text) or _worked_on(text) for text, *_ in found["active"]}
        return Work(
            int(found["now"]) / 1000,
            _by_model_queue(found["in_flight"]),
            _by_model_queue(found["deferred"]),
            [Active(self._led[text], *counts) for text, *counts in found["active"]],
            found["cleanup"],
            {owner: float(weight) for owner, weight, _ in found["keys"]},
            {owner: int(left) for owner, _, left in found["keys"] if left is not None},
            frozenset(found["known"]),
            _by_model_queue(found["interactive_in_flight"]),
            _by_model_queue(found["interactive_deferred"]),
        )

    def renew(self, token: str) -> None:
        """Say that the leader lives, however long its round takes. Raises LeadLost."""
        check_lead(self._run("leader/renew", token))

    def resign(self, token: str) -> None:
        """Let another lead at once."""
        self._run("leader/resign", token)

    def release_deferred(
        self, token: str, shares: Mapping[str, int], model_queue: str = "", priority: Priority = Priority.BULK
    ) -> list[str]:
        """Send so many of each owner's deferred jobs, and return their ids. Raises LeadLost."""
        accounts = (
            (f"{owner}@{model_queue}" if model_queue else owner, count) for owner, count in shares.items()
        )
        answer: list[str] = self._run(
            "queues/release_deferred", token, priority.value, *(value for pair in accounts for value in pair)
        )
        check_lead(answer[0])
        return answer[1:]

    def chunks_ready(self, token: str, batch_id: str, chunks: int, lines: int) -> tuple[Ending, int]:
        """While a file is read: so many chunks can be sent, so many lines were seen.

        Gives what has ended the batch meanwhile, and how many chunks can be sent by what anybody said; after
        an end none is sent. Raises LeadLost.
        """
        status, ending, sendable = self._run("batches/chunks_ready", token, batch_id, chunks, lines)
        check_lead(status)
        return Ending(ending), int(sendable)

    def count_copy(self, token: str, batch_id: str, size: int) -> None:
        """The copy of a batch's lines has so many bytes, for the limits of its owner.

        Raises FilesLimit and LeadLost.
        """
        arguments = {
            "token": token,
            "id": batch_id,
            "bytes": size,
            "max_files": DEFAULT_MAX_FILES,
            "max_files_bytes": self._settings.max_files_bytes,
        }
        status, values = self._run("batches/count_copy", arguments)
        if status == "files":
            raise files_full(values)
        check_lead(status)

    def validated(
        self,
        token: str,
        batch_id: str,
        *,
        chunks: int,
        lines: int,
        invalid: Mapping[str, int],
        segment: str | None = None,
        errors: Sequence[Mapping[str, Any]],
        model: str | None,
    ) -> None:
        """The whole file is read; invalid: codes and how many lines have each, which are in this segment.

        Raises LeadLost.
        """
        arguments = {
            "token": token,
            "id": batch_id,
            "chunks": chunks,
            "lines": lines,
            "invalid": sum(invalid.values()),
            "model": model or "",
            "codes": dict(invalid),
            "segment": segment,
        }
        check_lead(self._run("batches/validated", arguments, json.dumps(list(errors), ensure_ascii=False)))

    def next_results(self, token: str, batch_id: str, most: int) -> Uncollected:
        """The lines that ended first and are in no segment yet. Raises LeadLost."""
        status, *rest = self._run("batches/next_results", token, batch_id, most)
        check_lead(status)
        number, *lines = rest
        return Uncollected(int(number), lines)

    def segment_stored(self, token: str, batch_id: str, segment: str, stored: Uncollected) -> bool:
        """Record that the segment with these lines is stored under this name.

        False if one of these lines was recorded before, or Redis has forgotten some of them.
        Raises LeadLost.
        """
        lines = [line.encode() for line in stored.lines]
        last = hashlib.sha1(lines[-1], usedforsecurity=False).hexdigest() if lines else ""
        counts = len(lines), sum(map(len, lines)), last
        status = self._run("batches/segment_stored", token, batch_id, segment, *counts)
        check_lead(status)
        return bool(status == "ok")

    def finalizing(self, token: str, batch_id: str) -> None:
        """All results are in segments. Raises LeadLost."""
        check_lead(self._run("batches/finalizing", token, batch_id))

    def fail(self, token: str, batch_id: str, code: str, message: str) -> None:
        """It cannot be run, or its results cannot be had. Raises LeadLost."""
        error = {"code": code, "line": None, "message": message, "param": None}
        self.finish(token, batch_id, "failed", errors=json.dumps([error], ensure_ascii=False))

    def finish(self, token: str, batch_id: str, status: str, **fields: str) -> None:
        """Write its end. Raises LeadLost."""
        flat = (value for pair in fields.items() for value in pair)
        check_lead(self._run("batches/finish", token, batch_id, self._ttl_ms, status, *flat))

    def cleaned(self, batch_id: str) -> None:
        """Nothing of it is in the file store any more but its output files."""
        with answering():
            self._redis.srem(f"{self.prefix}batches:cleanup", batch_id)

    def not_cleaned(self, batch_id: str) -> None:
        """It has objects again, to be removed in a later round."""
        with answering():
            self._redis.sadd(f"{self.prefix}batches:cleanup", batch_id)

    def live(self, batch_id: str) -> list[str]:
        """Ids of its windows that have not ended, and of jobs that an earlier release made of lines."""
        with answering():
            return sorted(self._redis.smembers(f"{self.prefix}batch:{batch_id}:live") - {RESULTS})


def _worked_on(text: str) -> Batch:
    fields = zip(WORKED_ON, json.loads(text), strict=True)
    return Batch.from_hash({name: value for name, value in fields if value is not False})


def _by_model_queue(accounts: Sequence[str]) -> QueueCounts:
    """From OWNER or OWNER@MODEL and a number, each."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, count in pairs(accounts).items():
        owner, _, model_queue = name.partition("@")
        counts[model_queue][owner] = int(count)
    return counts


def check_lead(status: str) -> None:
    """Raises LeadLost where a script said so."""
    if status == "lost":
        raise LeadLost
