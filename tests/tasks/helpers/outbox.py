"""Short ways to say what the tests of webhooks say often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from tasks.records.job import Status
from tasks.records.webhook import DeliveryStatus, Webhook
from tasks.schema.webhook_request import JobEvent
from tasks.store.jobs import JobStore
from tasks.webhooks.sender import WebhookSender
from tasks.webhooks.store import Attempt, Delivery, DeliveryStore, Due, Schedule
from tests.support.workers import wait_until
from tests.tasks.helpers.records import claimed, queued

Start = Callable[..., WebhookSender]
URL = "https://example.com/hook?a=b"
ALL = Webhook(URL, get_args(JobEvent))
SOON = Schedule(retries_s=(0.05, 0.05))  # an answer may come late on a busy machine
GOOD = Attempt(0.01, 200)
BAD = Attempt(0.01, 500)
MOST = 100
EACH = 30  # to one host, of which one owner gets a third
MINE = 10


def end(store: JobStore, webhook: Webhook | None = ALL, owner: str = "me", **fields: Any) -> str:
    """A job that succeeded, and what it says put into the outbox."""
    job_id = queued(store, webhook=webhook, owner=owner, **fields)
    assert store.finish(job_id, claimed(store, job_id).fencing_token, Status.SUCCEEDED, {"text": "done"})
    return job_id


def take(
    outbox: DeliveryStore, most: int = MOST, held: dict[tuple[str, str], int] | None = None
) -> list[Due]:
    """held: what is under way, by owner and host."""
    return outbox.take(most, 10 * MOST, EACH, held or {})[0]


def only(outbox: DeliveryStore, owner: str = "me") -> Delivery:
    [delivery], more = outbox.page(owner, 10)
    assert not more
    return delivery


def make_due(store: JobStore) -> None:
    """As if all waits, and all leases, were over."""
    for key in store.db.redis.scan_iter(f"{store.db.prefix}hook_queue:*"):
        owner, _, to = key.removeprefix(f"{store.db.prefix}hook_queue:").partition(":")
        for delivery_id in store.db.redis.zrange(key, 0, -1):
            store.db.redis.zadd(key, {delivery_id: 1})
        store.db.redis.zadd(f"{store.db.prefix}hook_due:{owner}", {to: 1})
        store.db.redis.zadd(f"{store.db.prefix}hook_owners", {owner: 1})


def keys(store: JobStore) -> set[str]:
    return {key for key in store.db.redis.scan_iter(f"{store.db.prefix}*") if ":hook" in key}


def queue_delivery(store: JobStore, url: str, owner: str = "me", text: str = "done") -> str:
    """The id of the delivery of a job that succeeded."""
    job_id = queued(store, webhook=Webhook(url, get_args(JobEvent)), owner=owner)
    assert store.finish(job_id, claimed(store, job_id).fencing_token, Status.SUCCEEDED, {"text": text})
    return f"evt_{job_id.removeprefix('job_')}"


def over(outbox: DeliveryStore, delivery_id: str, timeout_s: float = 30.0) -> Delivery:
    """The delivery once it is pending no more."""

    def delivery() -> Delivery:
        return outbox.get(delivery_id, "me")

    wait_until(
        lambda: delivery().status is not DeliveryStatus.PENDING, timeout_s, report=lambda: str(delivery())
    )
    return delivery()


def tried(outbox: DeliveryStore, delivery_id: str, times: int = 1) -> Delivery:
    """The delivery once so many attempts are noted."""
    wait_until(lambda: len(outbox.get(delivery_id, "me").attempts) >= times)
    return outbox.get(delivery_id, "me")
