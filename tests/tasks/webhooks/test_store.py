"""The outbox of webhooks on a real server: taken by one at a time, shown to its owner, bounded."""

from __future__ import annotations

import time

import pytest

from tasks.base.errors import DeliveryNotFound, SecretChanging, SecretFixed
from tasks.records.webhook import DeliveryStatus, Webhook, new_secret
from tasks.store.jobs import JobStore
from tasks.webhooks import store as deliveries_module
from tasks.webhooks.sender import outcome
from tasks.webhooks.store import SCHEDULE, Attempt, DeliveryStore
from tests.support.servers import RedisServer, fast_settings
from tests.tasks.helpers.outbox import ALL, BAD, EACH, GOOD, MINE, MOST, URL, end, keys, make_due, only, take


def test_a_delivery_is_in_one_hand_at_a_time(store: JobStore, outbox: DeliveryStore) -> None:
    job_id = end(store)
    [due] = take(outbox)
    assert (due.url, due.owner, due.number, due.tries) == (URL, "me", 1, 1)
    assert take(outbox) == []
    assert only(outbox).next_attempt_at is None
    assert outbox.done(due, GOOD, DeliveryStatus.DELIVERED)
    assert not outbox.done(due, GOOD, DeliveryStatus.DELIVERED)
    assert take(outbox) == []
    delivery = only(outbox)
    assert (delivery.status, delivery.object_id) == (DeliveryStatus.DELIVERED, job_id)
    [attempt] = delivery.attempts
    assert (attempt["number"], attempt["status_code"], attempt["error"]) == (1, 200, None)
    assert attempt["at"] == pytest.approx(time.time(), abs=2)
    assert delivery.ended_at is not None
    store.delete(job_id)
    assert outbox.get(due.id, "me") == delivery, "the job's record is none of its own"


def test_what_a_lost_sender_held_is_given_to_another(store: JobStore, outbox: DeliveryStore) -> None:
    end(store)
    [first] = take(outbox)
    make_due(store)
    [second] = take(outbox)
    assert (second.id, second.body, second.number) == (first.id, first.body, 2)
    assert not outbox.done(first, GOOD, DeliveryStatus.DELIVERED)
    assert outbox.done(second, GOOD, DeliveryStatus.DELIVERED)
    lost, good = only(outbox).attempts
    assert (lost["number"], lost["status_code"]) == (1, None)
    assert lost["error"] == "the sender was lost before it could note an answer"
    assert (good["number"], good["status_code"]) == (2, 200)


def test_a_delivery_that_kills_its_senders_is_given_up(store: JobStore, outbox: DeliveryStore) -> None:
    end(store)
    for _ in range(deliveries_module.MOST_LOST):
        assert len(take(outbox)) == 1
        make_due(store)
    assert take(outbox) == []
    assert only(outbox).status is DeliveryStatus.FAILED
    assert len(only(outbox).attempts) == deliveries_module.MOST_LOST


def test_the_last_fifty_attempts_are_kept(store: JobStore, outbox: DeliveryStore) -> None:
    """However often it is replayed; their numbers go on."""
    end(store)
    for tries in range(1, 53):
        [due] = take(outbox)
        assert due.number == tries
        assert outbox.done(due, BAD, DeliveryStatus.FAILED)
        numbers = [attempt["number"] for attempt in only(outbox).attempts]
        assert numbers == list(range(max(1, tries - 49), tries + 1))
        outbox.replay(due.id, "me")


def test_lost_senders_use_up_no_tries(store: JobStore, outbox: DeliveryStore) -> None:
    end(store)
    for _ in range(2):
        for lost in range(len(SCHEDULE.retries_s) + 2):
            waits_s = SCHEDULE.lease_s * (lost + 1)
            [due], wait_s = outbox.take(MOST, 10 * MOST, EACH, {})
            assert wait_s == pytest.approx(waits_s, abs=1), "longer each time"
            make_due(store)
        [due] = take(outbox)
        assert outcome(BAD, due.tries, SCHEDULE.retries_s)[0] is DeliveryStatus.PENDING
        assert outbox.done(due, BAD, DeliveryStatus.PENDING)
    assert due.tries == 2


def test_the_lease_is_longer_than_an_attempt(store: JobStore, outbox: DeliveryStore) -> None:
    end(store)
    due, wait_s = outbox.take(MOST, 10 * MOST, EACH, {})
    assert len(due) == 1
    assert wait_s is not None
    assert wait_s >= 1.9 * SCHEDULE.timeout_s


def test_one_host_leaves_room_for_others(store: JobStore, outbox: DeliveryStore) -> None:
    for n in range(MINE + 5):
        end(store, Webhook(f"http://slow.example:{8000 + n}/", ALL.events))
    for n in range(3):
        end(store, Webhook(f"http://fast{n}.example/", ALL.events))
    first = take(outbox)
    assert len(first) == MINE + 3
    assert [due.host for due in first].count("slow.example") == MINE, "on whatever ports"
    held = {("me", "slow.example"): MINE}
    assert take(outbox, held=held) == []
    end(store, Webhook("http://slow.example/", ALL.events))
    end(store, Webhook("http://fast0.example/", ALL.events))
    [due] = take(outbox, most=1, held=held)
    assert due.url == "http://fast0.example/"
    assert len(take(outbox, held={("me", "slow.example"): MINE - 3})) == 3
    assert len(take(outbox, most=1)) == 1


def test_one_owner_leaves_room_for_others(store: JobStore, outbox: DeliveryStore) -> None:
    """However many receivers it has: names of hosts cost nothing."""
    for n in range(MOST):
        end(store, Webhook(f"http://h{n}.example/", ALL.events), owner="greedy")
    end(store)
    end(store, owner="other")
    due, _ = outbox.take(MOST, 27, EACH, {})
    assert [one.owner for one in due] == ["greedy"] * 3 + ["me", "other"]
    held = {(one.owner, one.host): 1 for one in due}
    assert outbox.take(MOST, 22, EACH, held)[0] == [], (
        "it holds three, and may hold an eighth of what is free"
    )
    end(store)
    due, _ = outbox.take(MOST, 22, EACH, held)
    assert [one.owner for one in due] == ["me"]
    due, _ = outbox.take(MOST, 26, EACH, {("greedy", "h0.example"): 1})
    assert [one.owner for one in due] == ["greedy"] * 2


def test_several_owners_share_a_host(store: JobStore, outbox: DeliveryStore) -> None:
    for owner in ("me", "other"):
        for _ in range(9):
            end(store, owner=owner)
    first = outbox.take(MOST, MOST, 12, {})[0]
    assert [due.owner for due in first] == ["me"] * 4 + ["other"] * 3
    held = {("me", "example.com"): 4, ("other", "example.com"): 3}
    assert outbox.take(MOST, MOST, 12, held)[0] == []
    end(store, owner="third")
    assert [due.owner for due in outbox.take(MOST, MOST, 12, held)[0]] == ["third"]


def test_a_record_that_is_missing_stops_no_other(redis_server: RedisServer) -> None:
    settings = fast_settings(redis_server)
    store = JobStore(settings)
    outbox = DeliveryStore(store.db, settings, kept=1)
    indexes = ("hook_queue:me:example.com:443", "hook_expiry", "hooks:me:delivered:ended")
    for index in indexes:
        store.db.redis.zadd(f"{store.db.prefix}{index}", {"evt_gone": 0})
    try:
        for _ in range(3):
            end(store)
        first = take(outbox, most=1)
        [one, two, three] = first + take(outbox)
        for due in (one, two, three):
            assert outbox.done(due, GOOD, DeliveryStatus.DELIVERED)
        assert only(outbox).id == three.id
        for index in indexes:
            assert store.db.redis.zscore(f"{store.db.prefix}{index}", "evt_gone") is None, index
    finally:
        store.close()


def test_senders_are_woken(store: JobStore, outbox: DeliveryStore) -> None:
    with store.db.redis.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe(f"{store.db.prefix}hooks")
        pubsub.get_message(timeout=1)
        end(store)
        assert pubsub.get_message(timeout=5) is not None
        [due] = take(outbox)
        assert outbox.done(due, BAD, DeliveryStatus.PENDING, delay_s=0)
        assert pubsub.get_message(timeout=5) is not None


def test_an_address_that_is_gone_is_left_alone_until_it_is_replayed(
    store: JobStore, outbox: DeliveryStore
) -> None:
    end(store)
    end(store)
    end(store, owner="other")
    mine, _ = [due for due in take(outbox, most=3) if due.owner == "me"]
    other = Webhook(URL + "2", ALL.events)
    assert outbox.done(mine, Attempt(0.1, 410), DeliveryStatus.DISABLED)
    make_due(store)
    end(store)
    end(store, other)
    due = take(outbox)
    assert sorted((one.owner, one.url) for one in due) == [("me", URL + "2"), ("other", URL)]
    disabled, more = outbox.page("me", 10, status=DeliveryStatus.DISABLED)
    assert (len(disabled), more) == (3, False)
    assert disabled[0].attempts[-1]["error"] == "not sent: the address answered 410 before"
    again = outbox.replay(mine.id, "me")
    assert (again.status, again.ended_at) == (DeliveryStatus.PENDING, None)
    [sent] = take(outbox)
    assert (sent.id, sent.body, sent.tries) == (mine.id, mine.body, 1)
    end(store)
    assert len(take(outbox)) == 1, "the address is used again"


def test_replay(store: JobStore, outbox: DeliveryStore) -> None:
    end(store)
    [due] = take(outbox)
    assert outbox.done(due, BAD, DeliveryStatus.PENDING, delay_s=3600)
    assert take(outbox) == []
    outbox.replay(due.id, "me")
    [again] = take(outbox)
    assert (again.id, again.number, again.tries) == (due.id, 2, 1)
    assert outbox.done(again, BAD, DeliveryStatus.FAILED)
    assert only(outbox).status is DeliveryStatus.FAILED
    outbox.replay(due.id, "me")
    assert store.db.redis.zcard(f"{store.db.prefix}hook_expiry") == 0
    [third] = take(outbox)
    assert outbox.done(third, GOOD, DeliveryStatus.DELIVERED)
    assert [a["number"] for a in only(outbox).attempts] == [1, 2, 3]
    for owner, delivery_id in (("other", due.id), ("me", "evt_x")):
        with pytest.raises(DeliveryNotFound):
            outbox.replay(delivery_id, owner)


@pytest.mark.parametrize("status", [DeliveryStatus.PENDING, DeliveryStatus.FAILED, DeliveryStatus.DISABLED])
def test_a_replay_while_it_is_sent_counts_when_that_has_failed(
    store: JobStore, outbox: DeliveryStore, status: DeliveryStatus
) -> None:
    end(store)
    [due] = take(outbox)
    assert outbox.done(due, BAD, DeliveryStatus.PENDING)
    [due] = take(outbox)
    assert outbox.replay(due.id, "me").next_attempt_at is None
    assert take(outbox) == [], "it is being sent"
    assert outbox.done(due, BAD, status, delay_s=3600)
    [again] = take(outbox)
    assert (again.id, again.number, again.tries) == (due.id, 3, 1)
    assert outbox.done(again, BAD, DeliveryStatus.PENDING, delay_s=3600)
    assert take(outbox) == [], "once"


def test_a_replay_while_it_is_sent_needs_no_more_than_that_success(
    store: JobStore, outbox: DeliveryStore
) -> None:
    end(store)
    [due] = take(outbox)
    outbox.replay(due.id, "me")
    assert outbox.done(due, GOOD, DeliveryStatus.DELIVERED)
    assert take(outbox) == []
    assert only(outbox).status is DeliveryStatus.DELIVERED


def test_lists_are_the_owner_s_newest_first_in_pages(store: JobStore, outbox: DeliveryStore) -> None:
    jobs = [end(store) for _ in range(5)]
    end(store, owner="other")
    first, more = outbox.page("me", 3)
    assert ([d.object_id for d in first], more) == (jobs[:1:-1], True)
    rest, more = outbox.page("me", 3, first[-1].id)
    assert ([d.object_id for d in rest], more) == (jobs[1::-1], False)
    assert outbox.page("me", 3, status=DeliveryStatus.FAILED) == ([], False)
    assert [d.object_id for d in outbox.of_object(jobs[2], "me")] == [jobs[2]]
    assert outbox.of_object(jobs[2], "other") == []
    with pytest.raises(DeliveryNotFound):
        outbox.get(first[0].id, "other")
    with pytest.raises(DeliveryNotFound):
        outbox.page("other", 3, after=first[0].id)


def test_the_log_is_bounded_and_what_is_pending_is_not(redis_server: RedisServer) -> None:
    settings = fast_settings(redis_server, result_ttl_s=1)
    store = JobStore(settings)
    outbox = DeliveryStore(store.db, settings, kept=3)
    try:
        for _ in range(6):
            end(store)
            [due] = take(outbox)
            assert outbox.done(due, GOOD, DeliveryStatus.DELIVERED)
        kept, _ = outbox.page("me", 10)
        assert len(kept) == 3
        assert kept[0].object_id == f"job_{due.id.removeprefix('evt_')}"
        for _ in range(6):
            end(store)
        store.db.redis.zadd(f"{store.db.prefix}hook_expiry", {delivery.id: 1 for delivery in kept})
        pending = take(outbox)
        left, _ = outbox.page("me", 10)
        assert len(left) == len(pending) == 6
        assert {delivery.status for delivery in left} == {DeliveryStatus.PENDING}
        for due in pending:
            assert outbox.done(due, GOOD, DeliveryStatus.DELIVERED)
        for key in store.db.redis.scan_iter(f"{store.db.prefix}hook_expiry"):
            store.db.redis.zadd(key, dict.fromkeys(store.db.redis.zrange(key, 0, -1), 1))
        assert take(outbox) == []
        assert keys(store) == {f"{store.db.prefix}hook_seq"}
    finally:
        store.close()


def test_the_log_keeps_what_ended_last(redis_server: RedisServer) -> None:
    settings = fast_settings(redis_server)
    store = JobStore(settings)
    outbox = DeliveryStore(store.db, settings, kept=3)
    try:
        made = []
        for _ in range(5):
            end(store)
            made += take(outbox)
        late, *others = made
        for due in (*others, late):
            assert outbox.done(due, GOOD, DeliveryStatus.DELIVERED)
        assert [d.id for d in outbox.page("me", 10)[0]] == [others[3].id, others[2].id, late.id]
        outbox.replay(others[2].id, "me")
        [again] = take(outbox)
        end(store)
        [new] = take(outbox)
        for due in (new, again):
            assert outbox.done(due, GOOD, DeliveryStatus.DELIVERED)
        assert {d.id for d in outbox.page("me", 10)[0]} == {late.id, new.id, again.id}
    finally:
        store.close()


def test_each_owner_has_secrets_that_rotate(outbox: DeliveryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = outbox.secrets("me")
    assert (mine.previous, mine.previous_until, mine.all) == (None, None, [mine.current])
    assert outbox.secrets("me") == mine
    assert outbox.secrets("other").current != mine.current
    rotated = outbox.secrets("me", rotate=True)
    assert rotated.all == [rotated.current, mine.current]
    assert rotated.previous_until == pytest.approx(time.time() + 24 * 3600, abs=5)
    assert outbox.signing_keys("me") == rotated.all
    with pytest.raises(SecretChanging):
        outbox.secrets("me", rotate=True)
    assert outbox.secrets("me") == rotated, "receivers may know only the one before it"
    monkeypatch.setattr(deliveries_module, "ROTATION_MS", 0)
    first = outbox.secrets("late", rotate=True)
    assert first.all == [first.current]
    for _ in range(2):
        at_once = outbox.secrets("late", rotate=True)
        assert outbox.secrets("late").all == [at_once.current], "the one before it has had its time"


def test_secrets_of_the_settings_are_everybody_s_and_shown_to_nobody(redis_server: RedisServer) -> None:
    both = [new_secret(), new_secret()]
    settings = fast_settings(redis_server, webhook_secrets=" ".join(both))
    store = JobStore(settings)
    outbox = DeliveryStore(store.db, settings)
    assert outbox.signing_keys("me") == outbox.signing_keys("other") == both
    for rotate in (False, True):
        with pytest.raises(SecretFixed):
            outbox.secrets("me", rotate=rotate)
    assert keys(store) == set()
    store.close()
