"""Every transition of a window and of its lines, the refused ones included."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from common.json_text import compact
from tasks.base.errors import LeadLost
from tasks.base.settings import Settings
from tasks.records.batch import Ending, line_job_id
from tasks.records.job import Status
from tasks.records.packed_line import Line
from tasks.records.window import Advanced, Group, NewWindow, Standing, WindowClaim
from tasks.schema.batch_output import ended_early
from tasks.store.jobs import ClaimRejection
from tasks.store.workers import Registry
from tests.tasks.helpers.batches import ROOM
from tests.tasks.helpers.records import WORKER
from tests.tasks.helpers.windows import LEADER, MAX_TOKENS, OPEN_ALL, Windows, numbers_of, packed

OWNER = "key_o"
TOOK = {"input_tokens": 5, "cached_tokens": 2, "output_tokens": 3}


@pytest.fixture
def own(settings: Settings) -> Iterator[Windows]:
    windows = Windows.begun(settings, owner=OWNER)
    yield windows
    windows.store.close()


def spent(own: Windows) -> int:
    [counter] = own.store.db.redis.scan_iter(f"{own.store.db.prefix}owner:{OWNER}:tokens:*")
    return int(own.store.db.redis.get(counter))


def stored(own: Windows) -> int:
    """Bytes that are counted, without those of the batch itself."""
    return own.number("stored_bytes", OWNER) - own.counted("stored")[0]


def rejection(own: Windows, window_id: str, **fields: str) -> ClaimRejection:
    claim = own.windows.claim(window_id, WORKER, "other", **fields)
    assert isinstance(claim, ClaimRejection)
    return claim


def test_sent_lines_wait_in_windows(own: Windows) -> None:
    ids = own.send([1, 2, 3], [4, 7])
    assert own.sent() == ids == [own.id_of(1), own.id_of(4)]
    assert own.live() == set(ids)
    assert own.counted("lines_live", "chunk", "place") == [5, 1, 0]
    assert own.number("outstanding", OWNER) == 5
    assert spent(own) == 5 * MAX_TOKENS
    assert stored(own) == sum(int(own.record(window_id)["stored"]) for window_id in ids)
    assert stored(own) > 2 * 1000


def test_its_message_says_which_lines_it_has(own: Windows) -> None:
    own.send(range(2049, 2113), [1, 3], [7])
    shown = [message["headers"]["argsrepr"] for message in own.messages()]
    name = own.batch.id
    assert shown == [f"'{name} lines 2,049 to 2,112'", f"'{name} lines 1 to 3 (2)'", f"'{name} line 7'"]


def test_live_windows_are_shown_with_their_lines(own: Windows) -> None:
    first, second = own.send([1, 2, 3], [10])
    claim = own.claim(first)
    own.advance(claim, 1, open_to=2)
    own.advance(claim, 2, 0, open_to=2)
    own.windows.split(first, claim.fencing_token)
    (running, parted, queued), more = own.windows.of_batch(own.batch.id, 3)
    assert not more
    assert own.windows.of_batch(own.batch.id, 2) == ([running, parted], True)
    assert (running.window_id, running.status, running.worker) == (first, Status.RUNNING, WORKER)
    assert (running.lines, running.count, running.ended) == (f"{own.batch.id} lines 1 to 2", 2, 1)
    assert (parted.lines, parted.status, parted.worker) == (f"{own.batch.id} line 3", Status.QUEUED, None)
    assert (queued.window_id, queued.attempt, queued.model) == (second, 1, None)


def test_what_is_sent_twice_or_too_late(own: Windows) -> None:
    before = own.batch
    own.send([1])
    new = [NewWindow("", [packed(1)])]
    assert not own.windows.send(LEADER, before, (1, 0), new)
    own.batches.stop(own.batch.id, Ending.CANCELLED)
    assert not own.windows.send(LEADER, own.batch, (2, 0), new)
    with pytest.raises(LeadLost):
        own.windows.send("another", own.batch, (2, 0), new)
    assert own.sent() == [own.id_of(1)]
    assert own.number("outstanding", OWNER) == 1


def test_a_claim_has_all_that_a_worker_needs(own: Windows) -> None:
    before = time.time()
    [window_id] = own.send([5, 6], model="m")
    claim = own.claim(window_id)
    assert (claim.window_id, claim.batch_id, claim.owner) == (window_id, own.batch.id, OWNER)
    assert (claim.attempts, claim.isolated, claim.model) == (1, False, "m")
    assert claim.fencing_token / 1000 == pytest.approx(before, abs=2)
    assert claim.lines == tuple(packed(n, "m").decode().removesuffix("\n") for n in (5, 6))
    assert claim.deadline == own.batch.expires_at
    assert claim.created_at == claim.queued_at == pytest.approx(before, abs=2)
    assert claim.created_at <= claim.claimed_at <= time.time() + 1
    assert own.record(window_id)["worker"] == WORKER


def test_a_claim_repeated_is_the_same_claim(own: Windows) -> None:
    [window_id] = own.send([1, 2])
    first = own.windows.claim(window_id, WORKER, "mine")
    again = own.windows.claim(window_id, WORKER, "mine")
    assert isinstance(first, WindowClaim)
    assert isinstance(again, WindowClaim)
    assert (again.fencing_token, again.lines) == (first.fencing_token, first.lines)
    assert rejection(own, window_id) is ClaimRejection.BUSY


def test_a_claim_of_what_is_not_there(own: Windows) -> None:
    assert rejection(own, own.id_of(1)) is ClaimRejection.UNKNOWN


def test_a_window_whose_lease_ran_out_is_the_reconcilers(own: Windows) -> None:
    [window_id] = own.send([1])
    own.claim(window_id)
    own.store.db.redis.zadd(f"{own.store.db.prefix}window_leases", {window_id: 1})
    assert rejection(own, window_id) is ClaimRejection.BUSY


def test_a_window_for_another_model_waits_in_its_queue(own: Windows) -> None:
    Registry(own.store.db, 60).announce_models(["asked"], 60)
    ids = own.send([1, 2], [3], model="asked")
    assert rejection(own, ids[0], model="other") is ClaimRejection.ELSEWHERE
    assert own.sent("asked") == [ids[0]]
    assert own.number("outstanding", f"{OWNER}@asked") == 2
    assert own.number("outstanding", OWNER) == 1
    assert numbers_of(own.claim(ids[0], "asked")) == [1, 2]
    assert rejection(own, ids[0], model="other") is ClaimRejection.BUSY


def test_a_window_for_a_model_that_nobody_knows_is_given_to_any_worker(own: Windows) -> None:
    [window_id] = own.send([1], model="asked")
    assert own.claim(window_id, "other").model == "asked"


@pytest.mark.parametrize("how", [Ending.CANCELLED, Ending.EXPIRED])
def test_a_window_of_a_batch_that_is_ending_is_given_to_nobody(own: Windows, how: Ending) -> None:
    ids = own.send([1, 2], [3])
    own.batches.stop(own.batch.id, how)
    assert rejection(own, ids[0]) is ClaimRejection.DONE
    assert own.codes() == {1: f"batch_{how}", 2: f"batch_{how}"}
    assert own.windows.end_queued(ids[1])
    assert not own.windows.end_queued(ids[1])
    assert own.live() == {"results"}
    assert own.counted("completed", "failed", "lines_live") == [0, 3, 0]
    assert own.number(f"batch:{own.batch.id}:codes", f"batch_{how}") == 3
    assert own.number("ended", how) == 3
    assert (own.number("outstanding", OWNER), spent(own)) == (0, 0)
    assert [stored(own)] == own.counted("result_bytes")


def test_a_queued_window_of_a_batch_under_way_is_not_ended(own: Windows) -> None:
    [window_id] = own.send([1])
    assert not own.windows.end_queued(window_id)
    own.batches.stop(own.batch.id, Ending.CANCELLED)
    assert own.live() == {window_id}


def test_a_running_window_is_not_ended_by_others(own: Windows) -> None:
    [window_id] = own.send([1])
    own.claim(window_id)
    own.batches.stop(own.batch.id, Ending.CANCELLED)
    assert not own.windows.end_queued(window_id)
    assert own.live() == {window_id}


@pytest.mark.parametrize("custom_id", ["id-7", 'a"\\é🌱\t\n\x00', "%s %1", "]}\u2028"])
def test_an_end_that_nobody_wrote_reads_as_any_other(own: Windows, custom_id: str) -> None:
    line = Line(7, custom_id, "m", "{}", 1).packed(0)
    assert own.windows.send(LEADER, own.batch, (1, 0), [NewWindow("m", [line])])
    own.batches.stop(own.batch.id, Ending.CANCELLED)
    own.windows.end_queued(own.id_of(7))
    message = "this line was cancelled before it ended"
    expected = ended_early(line_job_id(own.batch.id, 7), 7, compact(custom_id), "batch_cancelled", message)
    assert own.store.db.redis.lrange(f"{own.key}:results", 0, -1) == [expected]


def test_lines_are_opened_and_end(own: Windows) -> None:
    [window_id] = own.send([1, 2, 3])
    before = stored(own)
    claim = own.claim(window_id)
    assert own.advance(claim, 1, open_to=2) == Advanced(Standing.OK, 2, 3, 3)
    assert own.advance(claim, 2, 1, open_to=2, **TOOK) == Advanced(Standing.OK, 2, 3, 2)
    failed = own.advance(claim, 3, 0, status=Status.FAILED, code="c", cut=True)
    assert failed == Advanced(Standing.OK, 3, 3, 1)
    assert [number for number, *_ in own.results()] == [2, 1]
    assert own.counted("completed", "failed", "cut", "lines_live") == [1, 1, 1, 1]
    assert own.counted("input_tokens", "cached_tokens", "output_tokens") == [5, 2, 3]
    assert own.number(f"batch:{own.batch.id}:codes", "c") == 1
    assert (own.number("ended", "succeeded"), own.number("ended", "failed")) == (1, 1)
    assert own.number("outstanding", OWNER) == 1
    assert spent(own) == 5 + 3 + MAX_TOKENS
    assert stored(own) == before + own.counted("result_bytes")[0] > before
    assert own.live() == {window_id, "results"}


def test_a_window_is_gone_once_its_lines_have_ended(own: Windows) -> None:
    [window_id] = own.send([1, 2])
    claim = own.claim(window_id)
    own.advance(claim, 1)
    assert own.advance(claim, 2, 0, 1) == Advanced(Standing.OK, 2, 2, 0)
    assert own.advance(claim, 2, 0, 1) == Advanced(Standing.GONE)
    assert len(own.results()) == 2
    assert own.live() == {"results"}
    assert own.record(window_id) == {}
    assert not own.store.db.redis.exists(f"{own.store.db.prefix}window_leases")
    assert [stored(own)] == own.counted("result_bytes")
    assert (own.number("outstanding", OWNER), spent(own)) == (0, 0)


def test_a_group_that_comes_again_changes_nothing(own: Windows) -> None:
    [window_id] = own.send([1, 2])
    claim = own.claim(window_id)
    for _ in range(2):
        assert own.advance(claim, 1, open_to=1) == Advanced(Standing.OK, 1, 2, 2)
    for _ in range(2):
        assert own.advance(claim, 2, 0) == Advanced(Standing.OK, 2, 2, 1)
    assert own.advance(claim, 4) == Advanced(Standing.LOST)
    assert len(own.results()) == 1


def test_an_end_of_a_line_that_is_not_open_is_refused(own: Windows) -> None:
    [window_id] = own.send([1, 2])
    claim = own.claim(window_id)
    own.advance(claim, 1, open_to=1)
    assert own.advance(claim, 2, 1) == Advanced(Standing.LOST)
    own.advance(claim, 2, 0, open_to=1)
    assert own.advance(claim, 3, 0) == Advanced(Standing.LOST)
    assert len(own.results()) == 1


def test_nothing_is_written_by_whoever_has_lost_it(own: Windows) -> None:
    [window_id] = own.send([1])
    late = own.claim(window_id)
    own.advance(late, 1)
    assert own.windows.release(window_id, late.fencing_token)
    assert own.advance(late, 2, 0) == Advanced(Standing.LOST)
    claim = own.claim(window_id)
    own.advance(claim, 1)
    assert own.advance(late, 2, 0) == Advanced(Standing.LOST)
    assert not own.windows.release(window_id, late.fencing_token)
    assert own.windows.split(window_id, late.fencing_token) is None
    assert own.results() == []
    assert own.advance(claim, 2, 0).left == 0


def test_several_windows_advance_in_one_trip(own: Windows) -> None:
    claims = [own.claim(window_id) for window_id in own.send([1], [2, 3])]
    own.store.db.redis.script_flush()
    groups = [Group(claim.window_id, claim.fencing_token, 1, OPEN_ALL) for claim in claims]
    for _ in range(2):
        assert [answer.opened for answer in own.windows.advance(groups)] == [1, 2]


@pytest.mark.parametrize("how", [Ending.CANCELLED, Ending.EXPIRED])
def test_of_a_batch_that_is_ending_no_line_is_opened(own: Windows, how: Ending) -> None:
    [window_id] = own.send([1, 2, 3, 4])
    claim = own.claim(window_id)
    own.advance(claim, 1, open_to=2)
    own.batches.stop(own.batch.id, how)
    assert own.advance(claim, 2, 0) == Advanced(Standing.OK, 2, 2, 1)
    assert own.codes() == {1: None, 3: f"batch_{how}", 4: f"batch_{how}"}
    assert own.number("outstanding", OWNER) == 1
    assert own.advance(claim, 3, 1, status=Status.CANCELLED, code="batch_cancelled").left == 0
    assert own.counted("completed", "failed", "lines_live") == [1, 3, 0]
    assert [stored(own)] == own.counted("result_bytes")


def test_after_the_deadline_no_line_is_opened(settings: Settings) -> None:
    own = Windows.begun(settings, deadline=time.time() + 2)
    [window_id] = own.send([1, 2])
    claim = own.claim(window_id)
    own.advance(claim, 1, open_to=1)
    time.sleep(2.1)
    assert own.advance(claim, 2) == Advanced(Standing.OK, 1, 1, 1)
    assert own.codes() == {2: "batch_expired"}
    own.store.close()


def test_what_was_handed_back_is_as_before_without_what_has_ended(own: Windows) -> None:
    [window_id] = own.send([1, 2, 3])
    claim = own.claim(window_id)
    own.advance(claim, 1, open_to=2)
    own.advance(claim, 2, 0)
    assert own.windows.release(window_id, claim.fencing_token)
    assert not own.windows.release(window_id, claim.fencing_token)
    assert own.sent() == [window_id, window_id]
    again = own.claim(window_id)
    assert (numbers_of(again), again.attempts) == ([2, 3], 1)
    assert again.fencing_token > claim.fencing_token
    assert own.advance(again, 1, open_to=1) == Advanced(Standing.OK, 1, 2, 2)
    assert spent(own) == 2 * MAX_TOKENS
    assert stored(own) == int(own.record(window_id)["stored"]) + own.counted("result_bytes")[0]


def test_what_is_handed_back_of_a_batch_that_is_ending_has_ended(own: Windows) -> None:
    [window_id] = own.send([1, 2])
    claim = own.claim(window_id)
    own.advance(claim, 1, open_to=1)
    own.batches.stop(own.batch.id, Ending.CANCELLED)
    assert not own.windows.release(window_id, claim.fencing_token)
    assert own.codes() == {1: "batch_cancelled", 2: "batch_cancelled"}
    assert own.live() == {"results"}


def test_lines_that_wait_are_given_to_others(own: Windows) -> None:
    [window_id] = own.send([1, 2, 3, 4])
    claim = own.claim(window_id)
    own.advance(claim, 1, open_to=2)
    assert own.windows.split(window_id, claim.fencing_token, 3) == own.id_of(4)
    assert own.windows.split(window_id, claim.fencing_token) == own.id_of(3)
    assert own.windows.split(window_id, claim.fencing_token) is None
    assert own.sent() == [window_id, own.id_of(4), own.id_of(3)]
    assert own.live() == {window_id, own.id_of(3), own.id_of(4)}
    assert own.advance(claim, 2, 0) == Advanced(Standing.OK, 2, 2, 1)
    assert numbers_of(own.claim(own.id_of(3))) == [3]
    assert own.number("outstanding", OWNER) == 3
    assert spent(own) == 3 * MAX_TOKENS
    records = sum(int(own.record(own.id_of(n))["stored"]) for n in (1, 3, 4))
    assert stored(own) == records + own.counted("result_bytes")[0]
    assert own.advance(claim, 3, 1).left == 0


def test_what_is_given_to_others_of_a_batch_that_is_ending_has_ended(own: Windows) -> None:
    [window_id] = own.send([1, 2, 3])
    claim = own.claim(window_id)
    own.advance(claim, 1, open_to=1)
    own.batches.stop(own.batch.id, Ending.CANCELLED)
    own.windows.split(window_id, claim.fencing_token)
    assert own.codes() == {2: "batch_cancelled", 3: "batch_cancelled"}
    assert own.live() == {window_id, "results"}
    assert own.advance(claim, 2, 0) == Advanced(Standing.OK, 1, 1, 0)
    assert (own.live(), own.number("outstanding", OWNER)) == ({"results"}, 0)


def test_after_a_claim_that_redis_forgot_the_first_result_counts_and_the_second_is_refused(
    own: Windows,
) -> None:
    [window_id] = own.send([1, 2, 3])
    redis, prefix = own.store.db.redis, own.store.db.prefix
    key, pending = f"{prefix}win:{window_id}", redis.keys(f"{prefix}pending:windows*")[0]
    was = redis.hgetall(key)
    forgotten = own.claim(window_id)
    redis.delete(key)
    redis.hset(key, mapping=was)
    redis.zrem(f"{prefix}window_leases", window_id)
    redis.zadd(pending, {window_id: 1})
    time.sleep(0.002)  # no fail-over is faster
    again = own.claim(window_id)
    assert own.advance(forgotten, 1, open_to=3) == Advanced(Standing.LOST)
    assert own.advance(again, 1, open_to=3) == Advanced(Standing.OK, 3, 3, 3)
    assert own.advance(forgotten, 2, 0) == Advanced(Standing.LOST)
    assert own.advance(again, 2, 0, 1, 2).left == 0


def test_a_window_that_gives_away_all_that_has_not_ended_is_gone(own: Windows) -> None:
    [window_id] = own.send([1, 2])
    claim = own.claim(window_id)
    own.advance(claim, 1, open_to=1)
    own.advance(claim, 2, 0, open_to=1)
    assert own.windows.split(window_id, claim.fencing_token) == own.id_of(2)
    assert own.advance(claim, 3) == Advanced(Standing.GONE)
    assert own.live() == {own.id_of(2), "results"}
    assert stored(own) == int(own.record(own.id_of(2))["stored"]) + own.counted("result_bytes")[0]


def test_of_a_window_with_no_open_line_the_first_stays(own: Windows) -> None:
    """The name of a window is that of a line which no other window was named by."""
    [window_id] = own.send([1, 2])
    claim = own.claim(window_id)
    assert own.windows.split(window_id, claim.fencing_token) == own.id_of(2)
    assert own.windows.split(window_id, claim.fencing_token) is None
    assert own.advance(claim, 1) == Advanced(Standing.OK, 1, 1, 1)


def test_an_owner_without_a_key_has_no_tokens_to_count(settings: Settings) -> None:
    own = Windows.begun(settings)
    [window_id] = own.send([1, 2])
    claim = own.claim(window_id)
    own.advance(claim, 1)
    assert own.advance(claim, 2, 0, 1, **TOOK).left == 0
    assert not list(own.store.db.redis.scan_iter(f"{own.store.db.prefix}owner:*"))
    assert own.batches.lead(LEADER, ROOM) is not None
    own.store.close()
