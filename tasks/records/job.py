"""The job record: frozen, read from the Redis hash, shown as JSON."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tasks.records import ids
from tasks.records.webhook import Webhook

INCOMPLETE = "incomplete"  # error code of a job whose JSON was cut off; its result has the text so far
MAX_TEMPERATURE = 2  # as in the OpenAI API; beyond it answers are noise
PREVIEW_CHARS = 60  # of a prompt in a table: enough to recognise it


class Status(StrEnum):
    """The state of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


CHANGING = (  # fields of the hash that a Job is made from, except its request
    *("id", "status", "priority", "model", "created_at", "started_at", "finished_at", "deadline", "attempts"),
    *("worker", "metadata", "result", "error", "owner", "lane", "waiters"),
)
TERMINAL = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.EXPIRED})


class Decoding(StrEnum):
    """Whether tokens are drafted, by the names of the engine."""

    AUTO = "auto"  # whenever it is measured to pay
    MEDUSA = "medusa"  # every step, by the heads: for comparison
    NORMAL = "normal"  # never


class Acceptance(StrEnum):
    """When a drafted token is accepted, by the names of the engine."""

    EXACT = "exact"  # when plain decoding would have emitted it too
    TYPICAL = "typical"  # when it is likely enough: lossy


class Priority(StrEnum):
    """Which queue a job waits in; interactive jobs overtake bulk ones."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


def new_job_id() -> str:
    """A fresh random job id."""
    return ids.JOB.new()


def random_seed() -> int:
    """A seed to store in the record, so that a second attempt generates the same text."""
    return secrets.randbits(53)  # every JSON reader represents so many bits exactly


def prompt_size(request: Mapping[str, Any]) -> str:
    """All that Flower shows of a prompt: as in "1,234 chars"."""
    texts = [request["prompt"]] if request.get("prompt") is not None else _contents(request["messages"])
    return f"{sum(map(len, texts)):,} chars"


def _contents(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(message.get("content") or "") for message in messages]


def preview(request: Mapping[str, Any]) -> str:
    """The start of the prompt, or of the last message, on one line. What cannot be printed is U+FFFD."""
    text = request.get("prompt")
    if text is None:
        text = request["messages"][-1].get("content", "")
    return "".join(c if c.isprintable() else "\ufffd" for c in beginning(str(text), PREVIEW_CHARS))


def beginning(text: str, chars: int) -> str:
    """The start of a text on one line, of at most so many characters."""
    line = " ".join(text[: chars * 4].split())
    return line if len(line) <= chars else line[: chars - 1] + "…"


def result_line(result: Mapping[str, Any]) -> str:
    """As in "128 tokens, 46.1 tok/s, 79 steps, 1.62 tokens/step, medusa 52% accepted, stop".

    It names only the sources whose drafts were verified. Results of older workers have no speculation.
    """
    parts = [
        f"{result['usage']['completion_tokens']} tokens",
        f"{result['timing']['tokens_per_s']:.1f} tok/s",
    ]
    if (speculation := result.get("speculation")) is not None:
        parts.append(f"{speculation['steps']} steps")
        parts.append(f"{speculation['tokens_per_step']:.2f} tokens/step")
        drafted = {name: s["acceptance"] for name, s in speculation["sources"].items() if s["verified"]}
        parts += [f"{name} {acceptance:.0%} accepted" for name, acceptance in drafted.items()]
    return ", ".join([*parts, result["finish_reason"]])


@dataclass(frozen=True, slots=True)
class NewJob:
    """The fields that a submission sets. deadline is in Unix seconds; body_hash detects a different body.

    owner: also the one whose share of the workers a bulk job uses. streaming: a client reads its text while
    it is generated. waiter: the gateway that is told of its end, "" for none. keep_s: how long its record is
    kept after its end, None for the settings' time. traceparent: the trace context of its request.
    """

    request: Mapping[str, Any]
    id: str = field(default_factory=new_job_id)
    priority: Priority = Priority.INTERACTIVE
    model: str | None = None
    deadline: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None
    body_hash: str = ""
    owner: str = ""
    streaming: bool = False
    waiter: str = ""
    keep_s: float | None = None
    webhook: Webhook | None = None
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """One record. Times are Unix seconds; attempts counts claims; result may hold partial text.

    model_queue: the model in whose queue it waits; "" is the queue of jobs that any worker may take. waiters:
    the gateways that are told of its end, between spaces.
    """

    id: str
    status: Status
    priority: Priority
    model: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    deadline: float | None
    attempts: int
    worker: str | None
    metadata: dict[str, str]
    request: dict[str, Any]
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    owner: str = ""
    model_queue: str = ""
    waiters: str = ""

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL

    @classmethod
    def created(
        cls,
        new: NewJob,
        job_id: str,
        request: dict[str, Any],
        deadline_ms: int | None,
        now_ms: int,
        model_queue: str,
    ) -> Job:
        """The job as create.lua stored it, made without reading it back."""
        return cls(
            id=job_id,
            status=Status.QUEUED,
            priority=new.priority,
            model=new.model or None,
            created_at=now_ms / 1000,
            started_at=None,
            finished_at=None,
            deadline=None if deadline_ms is None else deadline_ms / 1000,
            attempts=0,
            worker=None,
            metadata=dict(new.metadata),
            request=request,
            result=None,
            error=None,
            owner=new.owner,
            model_queue=model_queue,
            waiters=new.waiter,
        )

    @classmethod
    def from_hash(cls, fields: Mapping[str, str], request: dict[str, Any] | None = None) -> Job:
        """From the Redis hash, where absent and empty both mean none. request: used instead of the hash's."""
        return cls(
            id=fields["id"],
            status=Status(fields["status"]),
            priority=Priority(fields["priority"]),
            model=fields.get("model") or None,
            created_at=float(fields["created_at"]) / 1000,
            started_at=seconds(fields.get("started_at")),
            finished_at=seconds(fields.get("finished_at")),
            deadline=seconds(fields.get("deadline")),
            attempts=int(fields["attempts"]),
            worker=fields.get("worker") or None,
            metadata=json.loads(fields["metadata"]),
            request=json.loads(fields["request"]) if request is None else request,
            result=_object(fields.get("result")),
            error=_object(fields.get("error")),
            owner=fields.get("owner", ""),
            model_queue=fields.get("lane", ""),
            waiters=fields.get("waiters", ""),
        )

    def to_json(self) -> dict[str, Any]:
        """The record as HTTP shows it."""
        return {
            "id": self.id,
            "object": "job",
            "status": self.status.value,
            "priority": self.priority.value,
            "model": self.model,
            "created_at": self.created_at,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "deadline": self.deadline,
            "attempts": self.attempts,
            "worker": self.worker,
            "metadata": self.metadata,
            "request": self.request,
            "result": self.result,
            "error": self.error,
        }


def seconds(ms: str | None) -> float | None:
    return float(ms) / 1000 if ms else None


def _object(text: str | None) -> dict[str, Any] | None:
    return json.loads(text) if text else None
