"""Jobs and batches as the gateway last showed them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

JOB_ENDS = frozenset({"succeeded", "failed", "cancelled", "expired"})
BATCH_ENDS = frozenset({"completed", "failed", "cancelled", "expired"})
MOST_LOSSES = 3  # of one job or batch
KEYS_S = 24 * 3600.0  # the gateway knows an idempotency key for so long


@dataclass(slots=True)
class Sent:
    """How a job or batch was asked for, and may be asked for again. source: of the file of a batch."""

    path: str
    body: dict[str, Any]
    key: str
    source: Any = None
    losses: int = 0
    began: float = field(default_factory=time.monotonic)

    def lost(self) -> bool:
        """Count a loss; False if it is one too many."""
        self.losses += 1
        return self.losses <= MOST_LOSSES and time.monotonic() - self.began < KEYS_S


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt.

    text: the answer; of a job that failed, as much of it as there is. record: all fields of the API.
    sent: how this client asked for it, if it did.
    """

    id: str
    status: str
    text: str = ""
    finish_reason: str | None = None
    error: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    record: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sent: Sent | None = field(default=None, repr=False, compare=False)

    @property
    def ended(self) -> bool:
        return self.status in JOB_ENDS

    @property
    def path(self) -> str:
        return f"/v1/jobs/{self.id}"

    @classmethod
    def of(cls, record: Mapping[str, Any], sent: Sent | None = None) -> Self:
        result = record["result"] or {}
        usage = result.get("usage", {})
        return cls(
            record["id"],
            record["status"],
            result.get("text", ""),
            result.get("finish_reason"),
            _line(record["error"]),
            usage.get("prompt_tokens", 0),
            usage.get("completion_tokens", 0),
            record,
            sent,
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Many requests. cancelled, expired: those that the end of the batch stopped or kept from being sent.

    error: why none could be run. record, sent: as of a job.
    """

    id: str
    status: str
    total: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    error: str | None = None
    record: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sent: Sent | None = field(default=None, repr=False, compare=False)

    @property
    def ended(self) -> bool:
        return self.status in BATCH_ENDS

    @property
    def path(self) -> str:
        return f"/v1/batches/{self.id}"

    @classmethod
    def of(cls, record: Mapping[str, Any], sent: Sent | None = None) -> Self:
        counts = record["request_counts"]
        errors = (record["errors"] or {}).get("data") or [None]
        return cls(
            record["id"],
            record["status"],
            counts["total"],
            counts["completed"],
            counts["failed"],
            counts["cancelled"],
            counts["expired"],
            _line(errors[0]),
            record,
            sent,
        )


def _line(error: Mapping[str, Any] | None) -> str | None:
    """An error of the API on one line, with its code."""
    if error is None:
        return None
    message = " ".join(str(error["message"]).split())
    return f"{error['code']}: {message}" if error.get("code") else message
