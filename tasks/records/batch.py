"""The batch record: frozen, read from the Redis hash, shown in OpenAI's format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tables.conversion.options import TableOptions
from tasks.records import ids
from tasks.records.webhook import Webhook
from tasks.records.window import Running

MAX_PRIORITY = 100
WINDOW_S = 24 * 3600  # "24h", the only completion window of OpenAI's API
TOP_CODES = 5  # reasons for failures shown on a batch
TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


class BatchStatus(StrEnum):
    """The state of a batch, by OpenAI's names."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


ENDED = frozenset({BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED})


NOTHING_RUNS = Running()


class Ending(StrEnum):
    """Why a batch ends before all its lines ran."""

    NONE = ""
    CANCELLED = "cancelled"
    EXPIRED = "expired"


STOPPED_CODES = {Ending.CANCELLED: "batch_cancelled", Ending.EXPIRED: "batch_expired"}  # of its lines


def new_batch_id() -> str:
    """A fresh random batch id."""
    return ids.BATCH.new()


def line_job_id(batch_id: str, line: int) -> str:
    """The id of a line, as in the id of its answer."""
    return f"job_{batch_id.removeprefix('batch_')}-{line}"


@dataclass(frozen=True, slots=True)
class NewBatch:
    """The fields that a submission sets.

    deadline: Unix seconds, None for a day from now; among the batches of one owner the higher priority goes
    first, then the earlier deadline. retry_of: a batch whose failed lines this one runs again. dry_run: the
    file is validated and nothing is sent. default_model, choose_from, max_tokens, every_model: as in
    LineDecoder.
    table: of a batch whose file is a table.
    """

    endpoint: str
    input_file_id: str
    id: str = field(default_factory=new_batch_id)
    owner: str = ""
    deadline: float | None = None
    priority: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
    output_expires_s: int | None = None
    retry_of: str | None = None
    dry_run: bool = False
    webhook: Webhook | None = None
    idempotency_key: str | None = None
    body_hash: str = ""
    default_model: str = ""
    choose_from: tuple[str, ...] = ()
    max_tokens: int | None = None
    every_model: str = ""
    table: TableOptions | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """One record. Times are Unix seconds.

    failed: lines that ended without an answer, those that were stopped too; lines that were never sent are
    neither completed nor failed. cut: answers that max_tokens cut off, failed ones too. (chunk, offset):
    position of the next line to send; chunks: how many chunks can be sent. codes: error code -> number of
    failed lines. input_filename: None of one that an earlier release made. segments: names of the files of
    collected results.
    BatchStore.page() leaves segments empty; BatchStore.lead() reads only what BatchStore.WORKED_ON names, the
    rest has defaults.
    """

    id: str
    seq: int
    owner: str
    status: BatchStatus
    endpoint: str
    input_file_id: str
    input_filename: str | None
    model: str | None
    priority: int
    created_at: float
    expires_at: float
    times: Mapping[str, float]
    total: int
    completed: int
    failed: int
    metadata: dict[str, str]
    errors: list[dict[str, Any]]
    output_file_id: str | None
    error_file_id: str | None
    output_expires_s: int | None
    retry_of: str | None
    dry_run: bool
    webhook: Webhook | None
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cut: int
    chunks: int
    chunk: int
    offset: int
    validated: bool
    ending: Ending
    codes: Mapping[str, int] = field(default_factory=dict)
    segments: tuple[str, ...] = ()
    default_model: str = ""
    choose_from: tuple[str, ...] = ()
    max_tokens: int | None = None
    every_model: str = ""
    table: TableOptions | None = None

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def sendable(self) -> bool:
        """Whether lines are ready to be sent, as far as is known."""
        return not self.ending and self.chunk < self.chunks

    @property
    def nothing_to_send(self) -> bool:
        """Whether all lines are sent, or the rest never will be."""
        return self.validated and (bool(self.ending) or self.chunk >= self.chunks)

    @property
    def wholly_invalid(self) -> bool:
        """Whether the file was read to its end and has no line that can be run."""
        return self.validated and not self.ending and 0 < self.total == self.failed and self.chunks == 0

    def request_counts(self) -> dict[str, int]:
        """As HTTP shows them: a line that was stopped, or kept from being sent, has not failed."""
        stopped = {how.value: self.codes.get(code, 0) for how, code in STOPPED_CODES.items()}
        failed = self.failed - sum(stopped.values())
        if self.status.value in stopped:
            stopped[self.status.value] += self.total - self.completed - self.failed
        return {"total": self.total, "completed": self.completed, "failed": failed, **stopped}

    @classmethod
    def from_hash(
        cls, fields: Mapping[str, str], codes: Mapping[str, str] | None = None, segments: Sequence[str] = ()
    ) -> Batch:
        """From the Redis hash, where absent and empty both mean none."""
        numbers = {name: int(fields.get(name) or 0) for name in NUMBERS}
        stamps = {name: fields.get(f"{name}_at") for name in TIMES}
        expires = fields.get("output_expires_s")
        return cls(
            id=fields["id"],
            owner=fields["owner"],
            status=BatchStatus(fields["status"]),
            endpoint=fields["endpoint"],
            input_file_id=fields["input_file_id"],
            input_filename=fields.get("input_filename") or None,
            model=fields.get("model") or None,
            created_at=float(fields["created_at"]) / 1000,
            expires_at=float(fields["expires_at"]) / 1000,
            times={name: float(stamp) / 1000 for name, stamp in stamps.items() if stamp},
            metadata=json.loads(fields.get("metadata") or "{}"),
            errors=json.loads(fields.get("errors") or "[]"),
            output_file_id=fields.get("output_file_id") or None,
            error_file_id=fields.get("error_file_id") or None,
            output_expires_s=int(expires) if expires else None,
            retry_of=fields.get("retry_of") or None,
            dry_run=fields.get("dry_run") == "1",
            webhook=Webhook.from_stored(fields["webhook"]) if fields.get("webhook") else None,
            validated=fields.get("validated") == "1",
            ending=Ending(fields.get("ending", "")),
            codes={code: int(count) for code, count in (codes or {}).items()},
            segments=tuple(segments),
            default_model=fields.get("default_model", ""),
            choose_from=tuple(json.loads(fields.get("choose_from") or "[]")),
            max_tokens=int(fields.get("max_tokens") or 0) or None,
            every_model=fields.get("every_model", ""),
            table=TableOptions.loaded(fields["table"]) if fields.get("table") else None,
            offset=int(fields.get("place") or 0),
            **numbers,
        )

    def to_json(self, running: Running = NOTHING_RUNS) -> dict[str, Any]:
        """The record as HTTP shows it: OpenAI's fields, then ours. running: of its lines."""
        times = {f"{name}_at": int(self.times[name]) if name in self.times else None for name in TIMES}
        failures = {code: count for code, count in self.codes.items() if code not in STOPPED_CODES.values()}
        top = sorted(failures.items(), key=lambda item: (-item[1], item[0]))[:TOP_CODES]
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": {"object": "list", "data": self.errors} if self.errors else None,
            "input_file_id": self.input_file_id,
            "input_filename": self.input_filename,
            "completion_window": "24h",
            "status": self.status.value,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": int(self.created_at),
            "expires_at": int(self.expires_at),
            **times,
            "request_counts": self.request_counts(),
            "usage": {
                "input_tokens": self.input_tokens,
                "input_tokens_details": {"cached_tokens": self.cached_tokens},
                "output_tokens": self.output_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": self.input_tokens + self.output_tokens,
            },
            "running": running.to_json(),
            "cut_by_max_tokens": self.cut,
            "metadata": self.metadata,
            "priority": self.priority,
            "retry_of": self.retry_of,
            "max_tokens": self.max_tokens,
            "dry_run": self.dry_run,
            "webhook": None if self.webhook is None else self.webhook.to_json(),
            "table": None if self.table is None else self.table.to_json(),
            "top_errors": [{"code": code, "count": count} for code, count in top],
        }


NUMBERS = (
    "seq",
    "priority",
    "total",
    "completed",
    "failed",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "cut",
    "chunks",
    "chunk",
)
