"""The outbox of webhooks: deliveries, the results of their attempts, and the signing keys.

A delivery is put in by the script that ends the job or batch (lua/lib/outbox.lua). Every method raises
StoreUnavailable when Redis does not answer in time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.base.errors import DeliveryNotFound, SecretChanging, SecretFixed
from tasks.base.settings import Settings
from tasks.records import ids
from tasks.records.job import seconds
from tasks.records.webhook import DeliveryStatus, new_secret
from tasks.store.database import Database
from tasks.store.scripts import answering

ROTATION_MS = 24 * 3600 * 1000  # both keys sign for a day, in which receivers can be given the new one
KEPT = 5000  # ended deliveries kept for each status and owner: Redis must hold them
# Senders lost in a row after which a delivery fails. Each time the lease is longer: half a day in all.
MOST_LOST = 50


@dataclass(frozen=True, slots=True)
class Schedule:
    """timeout_s: of an attempt, from the look-up of the name to the head of the response.

    retries_s: pauses before further attempts, from the Standard Webhooks specification: three days in all.
    """

    timeout_s: float = 20.0
    retries_s: tuple[float, ...] = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)

    @property
    def lease_s(self) -> float:
        """How long a sender has a delivery to itself: longer than an attempt."""
        return 2 * self.timeout_s


SCHEDULE = Schedule()


@dataclass(frozen=True, slots=True)
class Delivery:
    """One record. Times are Unix seconds; event: what is sent."""

    id: str
    status: DeliveryStatus
    type: str
    object_id: str
    url: str
    created_at: float
    next_attempt_at: float | None
    ended_at: float | None
    attempts: list[dict[str, Any]]
    event: dict[str, Any]

    @classmethod
    def from_hash(cls, fields: Mapping[str, str], attempts: Sequence[str]) -> Delivery:
        return cls(
            id=fields["id"],
            status=DeliveryStatus(fields["status"]),
            type=fields["type"],
            object_id=fields["object_id"],
            url=fields["url"],
            created_at=float(fields["created_at"]) / 1000,
            next_attempt_at=seconds(fields.get("next_at")),
            ended_at=seconds(fields.get("ended_at")),
            attempts=[json.loads(attempt) for attempt in attempts],
            event=json.loads(fields["body"]),
        )

    def to_json(self) -> dict[str, Any]:
        """The record as HTTP shows it."""
        return {
            "id": self.id,
            "object": "webhook.delivery",
            "status": self.status.value,
            "type": self.type,
            "object_id": self.object_id,
            "url": self.url,
            "created_at": self.created_at,
            "next_attempt_at": self.next_attempt_at,
            "ended_at": self.ended_at,
            "attempts": self.attempts,
            "event": self.event,
        }


@dataclass(frozen=True, slots=True)
class Due:
    """A delivery that the caller of take() must attempt now.

    number: of this attempt, which counts all of them. tries: attempts since the delivery was created or
    replayed, including this one, without those of lost senders.
    """

    id: str
    number: int
    tries: int
    owner: str
    url: str
    host: str
    body: bytes
    at: float  # Unix seconds by the clock of Redis


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of an attempt. error: why there was no response; retry_after_s: from Retry-After."""

    duration_s: float
    status_code: int | None = None
    error: str | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Secrets:
    """The secrets of one owner. previous also signs, until previous_until in Unix seconds."""

    current: str
    previous: str | None = None
    previous_until: float | None = None

    @property
    def all(self) -> list[str]:
        return [self.current] if self.previous is None else [self.current, self.previous]


class DeliveryStore:
    """kept: number of ended deliveries that are kept for each status and owner."""

    def __init__(
        self, database: Database, settings: Settings, schedule: Schedule | None = None, kept: int = KEPT
    ) -> None:
        self._run = database.scripts.run
        self._redis = database.redis
        self._ttl_ms = database.ttl_ms
        self._settings = settings
        self.prefix = database.prefix
        self.schedule = schedule or SCHEDULE
        self._kept = kept

    # For the gateway

    def get(self, delivery_id: str, owner: str) -> Delivery:
        """Raises DeliveryNotFound, also for a delivery of another owner."""
        found = self._load([delivery_id], owner)
        if not found:
            raise DeliveryNotFound(delivery_id)
        return found[0]

    def page(
        self, owner: str, limit: int, after: str | None = None, status: DeliveryStatus | None = None
    ) -> tuple[list[Delivery], bool]:
        """Deliveries, newest first, that follow the delivery `after`, and whether there are more.

        Raises DeliveryNotFound for an unknown `after`.
        """
        everything = f"{self.prefix}hooks:{owner}"
        index = everything if status is None else f"{everything}:{status.value}"
        below = "+inf"
        with answering():
            if after is not None:
                seq = self._redis.zscore(everything, after)
                if seq is None:
                    raise DeliveryNotFound(after)
                below = f"({seq:.0f}"
            ids = self._redis.zrevrangebyscore(index, below, "-inf", start=0, num=limit + 1)
        return self._load(ids[:limit], owner), len(ids) > limit

    def of_object(self, object_id: str, owner: str) -> list[Delivery]:
        """The delivery of a job's or batch's end, if there is one."""
        if not (ids.JOB.matches(object_id) or ids.BATCH.matches(object_id)):
            return []
        return self._load([f"evt_{object_id.partition('_')[2]}"], owner, object_id)

    def replay(self, delivery_id: str, owner: str) -> Delivery:
        """Send a delivery again now, whatever its state; raises DeliveryNotFound."""
        if not self._run("webhooks/replay", delivery_id, owner):
            raise DeliveryNotFound(delivery_id)
        return self.get(delivery_id, owner)

    def secrets(self, owner: str, *, rotate: bool = False) -> Secrets:
        """The signing secrets of an owner; raises SecretFixed if the settings set them for all owners.

        rotate: make a new one; raises SecretChanging while the previous one is still valid.
        """
        if self._settings.webhook_keys:
            raise SecretFixed
        current, previous, until = self._run(
            "webhooks/secret", owner, new_secret(), ROTATION_MS if rotate else ""
        )
        if not current:
            raise SecretChanging
        return Secrets(current, previous or None, int(until) / 1000 if previous and until else None)

    # For the sender

    def signing_keys(self, owner: str) -> list[str]:
        return list(self._settings.webhook_keys) or self.secrets(owner).all

    def take(
        self, most: int, free: int, most_to_one: int, held: Mapping[tuple[str, str], int]
    ) -> tuple[list[Due], float | None]:
        """Deliveries to attempt within the schedule's lease, and seconds until the next is due, where known.

        free: how many more the caller can send. held: those that it is sending, by owner and host. At most
        most_to_one go to a host; an owner gets its share of both limits (connection_slots.py).
        """
        arguments = {
            "lease_ms": round(self.schedule.lease_s * 1000),
            "most": most,
            "free": free,
            "most_to_one": most_to_one,
            "most_lost": MOST_LOST,
            **self._bounds(),
            "sending": [(owner, host, count) for (owner, host), count in held.items()],
        }
        wait, now, *deliveries = self._run("webhooks/lease_due", arguments)
        due = [
            Due(name, int(number), int(tries), owner, url, host, body.encode(), int(now) / 1000)
            for name, number, tries, owner, url, host, body in deliveries
        ]
        return due, None if int(wait) < 0 else int(wait) / 1000

    def done(self, due: Due, attempt: Attempt, status: DeliveryStatus, delay_s: float = 0.0) -> bool:
        """Store the result of an attempt; PENDING: try again after delay_s. False: the lease was lost."""
        noted = {
            "number": due.number,
            "at": due.at,
            "duration_s": round(attempt.duration_s, 3),
            "status_code": attempt.status_code,
            "error": attempt.error,
        }
        arguments = {
            "id": due.id,
            "fencing_token": due.number,
            "status": status,
            "delay_ms": round(delay_s * 1000),
            **self._bounds(),
        }
        return bool(self._run("webhooks/attempt_done", arguments, json.dumps(noted, ensure_ascii=False)))

    def _bounds(self) -> dict[str, int]:
        return {"ttl_ms": self._ttl_ms, "kept": self._kept}

    def _load(self, ids: Sequence[str], owner: str, object_id: str | None = None) -> list[Delivery]:
        """Those of the deliveries that exist and belong to the owner."""
        with answering(), self._redis.pipeline(transaction=False) as pipe:
            for delivery_id in ids:
                key = f"{self.prefix}hook:{delivery_id}"
                pipe.hgetall(key).lrange(f"{key}:attempts", 0, -1)
            answers = pipe.execute()
        found = [
            Delivery.from_hash(record, attempts)
            for record, attempts in zip(answers[::2], answers[1::2], strict=True)
            if record.get("owner") == owner
        ]
        return [d for d in found if object_id in (None, d.object_id)]
