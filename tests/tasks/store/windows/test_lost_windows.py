"""What the reconciler and the end of a batch do with windows, and what is told of those that run."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tasks.base.settings import Settings
from tasks.io import reconcile_once
from tasks.records.batch import Ending
from tasks.records.window import Advanced, Running, Standing
from tasks.store.jobs import Beat
from tests.support.servers import RedisServer, fast_settings
from tests.tasks.helpers.windows import LEADER, Windows, numbers_of

OWNER = "key_o"


@pytest.fixture
def settings(redis_server: RedisServer) -> Settings:
    """A message counts as lost after 0.9 s."""
    return fast_settings(redis_server, lease_ms=600, max_attempts=3)


@pytest.fixture
def own(settings: Settings) -> Iterator[Windows]:
    windows = Windows.begun(settings, owner=OWNER)
    yield windows
    windows.store.close()


def lose(own: Windows, *window_ids: str) -> None:
    """Their leases have run out."""
    own.store.db.redis.zadd(f"{own.store.db.prefix}window_leases", dict.fromkeys(window_ids, 1))
    reconcile_once(own.store)


def messages_are_lost(own: Windows, model: str = "") -> None:
    own.store.db.redis.delete(f"{own.store.db.prefix}medusaq.windows" + (f".{model}" if model else ""))


def test_a_lost_window_that_opened_no_line_waits_as_before(own: Windows) -> None:
    [window_id] = own.send([1, 2])
    fences = [0]
    for _ in range(4):
        claim = own.claim(window_id)
        fences.append(claim.fencing_token)
        assert (claim.attempts, numbers_of(claim)) == (1, [1, 2])
        lose(own, window_id)
        assert own.advance(claim, 1) == Advanced(Standing.LOST)
    assert fences == sorted(set(fences))
    assert own.sent() == [window_id] * 5


def test_only_lines_that_were_open_lose_an_attempt(own: Windows) -> None:
    [window_id] = own.send([1, 2, 3, 4, 5])
    claim = own.claim(window_id)
    own.advance(claim, 1, open_to=3)
    own.advance(claim, 2, 1, open_to=3)
    lose(own, window_id)
    assert set(own.sent()[1:]) == {window_id, own.id_of(4)}
    suspects, waited = own.claim(window_id), own.claim(own.id_of(4))
    assert (numbers_of(suspects), suspects.attempts, suspects.isolated) == ([1, 3], 2, False)
    assert (numbers_of(waited), waited.attempts) == ([4, 5], 1)
    assert own.number("outstanding", OWNER) == 4


def test_lines_that_all_waited_stay_in_their_window(own: Windows) -> None:
    [window_id] = own.send([1, 2, 3])
    claim = own.claim(window_id)
    own.advance(claim, 1, open_to=1)
    own.advance(claim, 2, 0, open_to=1)
    lose(own, window_id)
    again = own.claim(window_id)
    assert (numbers_of(again), again.attempts) == ([2, 3], 1)


def test_the_last_attempt_is_made_alone_and_its_failure_is_that_of_no_other(own: Windows) -> None:
    [window_id] = own.send([1, 2, 3])
    for attempt in (1, 2):
        claim = own.claim(window_id)
        assert (claim.attempts, claim.isolated) == (attempt, False)
        own.advance(claim, 1)
        lose(own, window_id)
    ids = [window_id, own.id_of(2), own.id_of(3)]
    claims = [own.claim(each) for each in ids]
    assert [(numbers_of(c), c.attempts, c.isolated) for c in claims] == [([n], 3, True) for n in (1, 2, 3)]
    for claim in claims:
        own.advance(claim, 1)
    own.advance(claims[0], 2, 0)
    lose(own, ids[1])
    assert own.advance(claims[2], 2, 0).left == 0
    assert own.codes() == {1: None, 2: "worker_lost", 3: None}
    [error] = [e["error"] for n, _, e in own.results() if n == 2]
    assert error["message"] == "the worker was lost 3 times while running this line"
    assert own.live() == {"results"}
    assert own.number("outstanding", OWNER) == 0


def test_a_lost_window_of_a_batch_that_is_ending_has_ended(own: Windows) -> None:
    [window_id] = own.send([1, 2])
    own.advance(own.claim(window_id), 1, open_to=1)
    own.batches.stop(own.batch.id, Ending.CANCELLED)
    lose(own, window_id)
    assert own.codes() == {1: "batch_cancelled", 2: "batch_cancelled"}
    assert own.live() == {"results"}


def test_a_lease_is_renewed_by_its_holder_alone(own: Windows) -> None:
    ids = own.send([1], [2])
    claims = [own.claim(window_id) for window_id in ids]
    beats = [(claim.window_id, claim.fencing_token) for claim in claims]
    assert own.store.heartbeat(beats) == [Beat.OK, Beat.OK]
    assert own.store.heartbeat([(ids[0], 7), (own.id_of(9), 1)]) == [Beat.LOST, Beat.LOST]
    own.store.db.redis.zadd(f"{own.store.db.prefix}window_leases", {ids[0]: 1, ids[1]: 1})
    own.store.heartbeat(beats[:1])
    own.store.reconcile()
    assert own.record(ids[0])["status"] == "running"
    assert own.store.heartbeat(beats) == [Beat.OK, Beat.LOST]
    own.batches.stop(own.batch.id, Ending.CANCELLED)
    assert own.store.heartbeat(beats[:1]) == [Beat.CANCEL]


@pytest.mark.slow
def test_a_lost_message_is_sent_again_once(own: Windows) -> None:
    [window_id] = own.send([1], model="m", model_queue="m")
    messages_are_lost(own, "m")
    time.sleep(1.05)
    reconcile_once(own.store)
    reconcile_once(own.store)
    assert own.sent("m") == [window_id]
    assert numbers_of(own.claim(window_id)) == [1]


@pytest.mark.slow
def test_an_old_message_still_in_its_list_is_lost_once_a_later_one_is_claimed(own: Windows) -> None:
    first, second = own.send([1], [2])
    time.sleep(1.05)
    reconcile_once(own.store)
    assert own.sent() == [first, second]
    own.claim(own.send([3])[0])
    reconcile_once(own.store)
    assert sorted(own.sent()) == sorted([first, first, second, second, own.id_of(3)])


def test_a_clock_set_back_delays_no_window(own: Windows) -> None:
    running, waiting = own.send([1], [2])
    own.claim(running)
    messages_are_lost(own)
    redis, prefix = own.store.db.redis, own.store.db.prefix
    ahead = round(time.time() * 1000) + 3600 * 1000
    redis.zadd(f"{prefix}window_leases", {running: ahead})
    redis.zadd(f"{prefix}pending:windows", {waiting: ahead, "win_gone": ahead})
    redis.set(f"{prefix}claimed:windows", ahead)
    reconcile_once(own.store)
    assert redis.zscore(f"{prefix}window_leases", running) < ahead - 3000 * 1000
    assert redis.zrange(f"{prefix}pending:windows", 0, -1) == [waiting]
    assert redis.zscore(f"{prefix}pending:windows", waiting) < ahead - 3000 * 1000
    assert int(redis.get(f"{prefix}claimed:windows")) < ahead - 3000 * 1000
    assert int(own.record(waiting)["enqueued_at"]) < ahead - 3000 * 1000


def test_with_a_batch_that_fails_its_windows_are_gone(own: Windows) -> None:
    running, waiting, ended = own.send([1, 2], [3], [4])
    claim, over = own.claim(running), own.claim(ended)
    own.advance(claim, 1, open_to=1)
    own.advance(over, 1)
    own.advance(over, 2, 0, input_tokens=1)
    own.batches.fail(LEADER, own.batch.id, "c", "it cannot be run")
    assert own.advance(claim, 2, 0) == Advanced(Standing.GONE)
    assert own.record(running) == own.record(waiting) == {}
    assert own.live() == set()
    assert own.results() == []
    assert own.number("outstanding", OWNER) == 0
    assert own.number("stored_bytes", OWNER) == own.counted("stored")[0]
    prefix = own.store.db.prefix
    [counter] = own.store.db.redis.scan_iter(f"{prefix}owner:{OWNER}:tokens:*")
    assert own.store.db.redis.get(counter) == "1"
    assert not own.store.db.redis.exists(f"{prefix}window_leases", f"{prefix}pending:windows")


def test_what_runs_is_told_until_it_ends_or_is_handed_back(own: Windows) -> None:
    name, other = own.batch.id, "batch_" + "0" * 32
    first, second = own.send([1, 2], [3])
    assert own.windows.running([name, other]) == {name: Running(), other: Running()}
    one, two = own.claim(first), own.claim(second)
    own.advance(one, 1, running=Running(2, 30))
    own.advance(two, 1, running=Running(1, 5))
    assert own.windows.running([name]) == {name: Running(3, 35)}
    own.advance(one, 2, 0, running=Running(1, 16), output_tokens=20)
    own.advance(one, 2, 0, running=Running(1, 99), output_tokens=20)
    assert own.windows.running([name]) == {name: Running(2, 21)}, "what has ended is counted once"
    assert own.counted("output_tokens") == [20]
    assert own.windows.release(second, two.fencing_token)
    assert own.windows.running([name]) == {name: Running(1, 16)}
    own.claim(second)
    assert own.windows.running([name]) == {name: Running(1, 16)}, "it begins anew"
    own.advance(one, 3, 1)
    assert own.windows.running([name]) == {name: Running()}
    assert own.windows.running([]) == {}
