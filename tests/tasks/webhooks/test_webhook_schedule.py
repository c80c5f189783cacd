"""When a webhook is tried again, by times in Redis that the tests move."""

from __future__ import annotations

import json
import time

import pytest

from tasks.records.webhook import DeliveryStatus
from tasks.store.jobs import JobStore
from tasks.webhooks.sender import JITTER, LONGEST_WAIT_S, outcome
from tasks.webhooks.store import SCHEDULE, Attempt, DeliveryStore
from tests.tasks.helpers.outbox import BAD, EACH, GOOD, MOST, end, make_due, take


def test_the_schedule() -> None:
    retries = SCHEDULE.retries_s
    hours = [s / 3600 for s in retries]
    assert hours == pytest.approx([5 / 3600, 5 / 60, 0.5, 2, 5, 10, 14, 20, 24])
    for tries, planned in enumerate(retries, 1):
        for _ in range(20):
            status, delay_s = outcome(BAD, tries, retries)
            assert status is DeliveryStatus.PENDING
            assert planned <= delay_s <= planned * (1 + JITTER)
    assert len({outcome(BAD, 5, retries)[1] for _ in range(20)}) > 1, "not all in the same second"
    assert outcome(BAD, len(retries) + 1, retries)[0] is DeliveryStatus.FAILED
    assert outcome(BAD, len(retries) + 2, retries)[0] is DeliveryStatus.FAILED


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (200, DeliveryStatus.DELIVERED),
        (204, DeliveryStatus.DELIVERED),
        (299, DeliveryStatus.DELIVERED),
        (None, DeliveryStatus.PENDING),
        (101, DeliveryStatus.PENDING),
        (301, DeliveryStatus.PENDING),
        (302, DeliveryStatus.PENDING),
        (307, DeliveryStatus.PENDING),
        (400, DeliveryStatus.PENDING),
        (404, DeliveryStatus.PENDING),
        (410, DeliveryStatus.DISABLED),
        (429, DeliveryStatus.PENDING),
        (503, DeliveryStatus.PENDING),
    ],
)
def test_what_an_answer_means(code: int | None, status: DeliveryStatus) -> None:
    assert outcome(Attempt(0.1, code), 1, [5])[0] is status


def test_what_the_receiver_asks_for_is_heeded_within_bounds() -> None:
    def delay_s(retry_after_s: float) -> float:
        return outcome(Attempt(0.1, 503, None, retry_after_s), 1, [5.0])[1]

    assert delay_s(120) == 120
    assert 5 <= delay_s(1) <= 5.5
    assert delay_s(1e9) == LONGEST_WAIT_S


def test_a_clock_set_back_delays_nothing(store: JobStore, outbox: DeliveryStore) -> None:
    """What lies an hour ahead was noted before: one is being sent, one is to be tried again, one is new."""
    for _ in range(2):
        end(store)
    sending, failed = take(outbox)
    assert outbox.done(failed, BAD, DeliveryStatus.PENDING, 300)
    end(store)
    [queue] = store.db.redis.scan_iter(f"{store.db.prefix}hook_queue:*")
    before = dict(store.db.redis.zrange(queue, 0, -1, withscores=True))
    hour_ms = 3600 * 1000
    for key in (queue, f"{store.db.prefix}hook_due:me", f"{store.db.prefix}hook_owners"):
        for member in store.db.redis.zrange(key, 0, -1):
            store.db.redis.zincrby(key, hour_ms, member)
    store.db.redis.set(f"{store.db.prefix}reconciled_at", round(time.time() * 1000) + hour_ms)
    assert take(outbox) == []
    store.reconcile()
    after = dict(store.db.redis.zrange(queue, 0, -1, withscores=True))
    assert after == {one: pytest.approx(at, abs=5000) for one, at in before.items()}
    assert outbox.get(failed.id, "me").next_attempt_at == pytest.approx(time.time() + 300, abs=10)
    make_due(store)
    assert {due.id for due in take(outbox)} == {sending.id, failed.id} | before.keys()


def test_a_receiver_that_is_down_for_days_loses_nothing(store: JobStore, outbox: DeliveryStore) -> None:
    """The times in Redis are moved, not the clock: there is no other memory of when to try again."""
    jobs = {end(store) for _ in range(20)}
    retries = SCHEDULE.retries_s
    seen = set()
    for tries in range(1, len(retries) + 1):
        taken = [due for _ in range(2) for due in take(outbox)]
        assert {due.tries for due in taken} == {tries}
        assert len(taken) == len(jobs)
        seen |= {due.body for due in taken}
        for due in taken:
            status, delay_s = outcome(Attempt(0.1, error="connection refused"), due.tries, retries)
            assert outbox.done(due, Attempt(0.1, error="connection refused"), status, delay_s)
            at = outbox.get(due.id, "me").next_attempt_at
            assert at == pytest.approx(time.time() + delay_s, abs=2)
        empty, wait_s = outbox.take(MOST, 10 * MOST, EACH, {})
        assert empty == []
        assert wait_s == pytest.approx(retries[tries - 1], rel=JITTER * 1.1, abs=2)
        make_due(store)
    taken = [due for _ in range(2) for due in take(outbox)]
    for due in taken:
        assert outbox.done(due, GOOD, DeliveryStatus.DELIVERED)
    assert {json.loads(due.body)["data"]["id"] for due in taken} == jobs
    assert len(seen) == len(jobs), "the message stays the same to the byte"
    assert not store.db.redis.exists(f"{store.db.prefix}hook_due:me", f"{store.db.prefix}hook_owners")
