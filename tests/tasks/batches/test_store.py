"""Batches in Redis: what one who leads may do, and what is kept of them."""

from __future__ import annotations

import time

import pytest

from tasks.base.errors import BatchNotFound, IdempotencyConflict, JobNotFound, LeadLost, LineOfBatch
from tasks.base.settings import Settings
from tasks.batches.store import BatchStore
from tasks.records.batch import BatchStatus, Ending, NewBatch
from tasks.records.batch_work import Active, Uncollected, Work
from tasks.records.job import NewJob, Priority, Status
from tasks.records.window import NewWindow
from tasks.schema.openai_requests import CHAT
from tasks.store.jobs import JobStore
from tasks.store.windows import WindowStore
from tasks.store.workers import Registry
from tests.support.workers import wait_until
from tests.tasks.helpers.batches import ROOM, claimed, made
from tests.tasks.helpers.records import batch_store, is_sent, sent_ids
from tests.tasks.helpers.windows import LEADER, Windows, entry, packed


@pytest.fixture
def batches(store: JobStore) -> BatchStore:
    return batch_store(store)


def lead(batches: BatchStore, token: str = "me") -> Work:
    work = batches.lead(token, ROOM)
    assert work is not None
    return work


def one(batches: BatchStore, batch_id: str, token: str = "me") -> Active:
    return next(active for active in lead(batches, token).active if active.batch.id == batch_id)


def test_a_batch_is_kept_as_it_was_made(batches: BatchStore) -> None:
    batch = made(batches, owner="o", metadata={"a": "ü"}, priority=3, output_expires_s=3600, dry_run=True)
    again = batches.get(batch.id)
    assert again == batch
    assert (again.status, again.owner, again.metadata) == (BatchStatus.VALIDATING, "o", {"a": "ü"})
    assert (again.priority, again.output_expires_s, again.dry_run) == (3, 3600, True)
    assert again.expires_at - again.created_at == pytest.approx(24 * 3600)
    with pytest.raises(BatchNotFound):
        batches.get("batch_none")


def test_the_same_key_makes_one_batch(batches: BatchStore) -> None:
    first = batches.create(NewBatch(CHAT, "file_x", idempotency_key="k", body_hash="h"))
    assert batches.create(NewBatch(CHAT, "file_x", idempotency_key="k", body_hash="h")) == first
    with pytest.raises(IdempotencyConflict, match=first.id):
        batches.create(NewBatch(CHAT, "file_y", idempotency_key="k", body_hash="other"))


def test_pages_are_newest_first(batches: BatchStore) -> None:
    ids = [made(batches).id for _ in range(5)]
    page, more = batches.page(2)
    assert ([b.id for b in page], more) == (ids[:2:-1], True)
    rest, more = batches.page(10, after=page[-1].id)
    assert ([b.id for b in rest], more) == (ids[2::-1], False)
    with pytest.raises(BatchNotFound):
        batches.page(2, after="batch_none")


def test_a_second_reading_does_not_count_again(batches: BatchStore) -> None:
    batch = made(batches)
    lead(batches)
    batches.validated("me", batch.id, chunks=3, lines=700, invalid={"a": 2}, errors=[], model=None)
    batches.chunks_ready("me", batch.id, 1, 1)
    batches.validated("me", batch.id, chunks=1, lines=1, invalid={"a": 1}, errors=[], model=None)
    now = batches.get(batch.id)
    assert (now.total, now.failed, now.chunks, now.codes) == (700, 2, 3, {"a": 2})


def test_one_leads(batches: BatchStore, store: JobStore) -> None:
    batch = made(batches)
    lead(batches, "me")
    assert batches.lead("other", ROOM) is None
    for refused in (
        lambda: batches.chunks_ready("other", batch.id, 1, 1),
        lambda: WindowStore(store.db).send("other", batch, (0, 1), []),
        lambda: batches.next_results("other", batch.id, 5),
        lambda: batches.segment_stored("other", batch.id, "p", Uncollected(0, [])),
        lambda: batches.validated("other", batch.id, chunks=0, lines=0, invalid={}, errors=[], model=None),
        lambda: batches.finalizing("other", batch.id),
        lambda: batches.finish("other", batch.id, "completed"),
        lambda: batches.release_deferred("other", {"a": 1}),
    ):
        with pytest.raises(LeadLost):
            refused()
    batches.resign("other")
    assert batches.lead("other", ROOM) is None, "it had nothing to give up"
    batches.resign("me")
    assert batches.lead("other", ROOM) is not None


def test_results_wait_until_they_are_in_a_part(settings: Settings) -> None:
    own = Windows.begun(settings, owner="o")
    batches, batch_id = own.batches, own.batch.id
    [window] = own.send([1, 2])
    before = one(batches, batch_id, LEADER)
    assert (before.live, before.uncollected, lead(batches, LEADER).in_flight) == (1, 0, {"": {"o": 2}})
    claim = own.claim(window)
    own.advance(claim, 1)
    own.advance(claim, 2, 1, 0)
    now, counts = one(batches, batch_id, LEADER), batches.get(batch_id)
    assert (now.live, now.uncollected, counts.completed, counts.failed) == (0, 2, 2, 0)
    assert now.result_bytes == len(entry(1)) + len(entry(2))
    assert lead(batches, LEADER).in_flight == {}
    found = batches.next_results(LEADER, batch_id, 1)
    assert found == Uncollected(0, [entry(2)]), "as it ended"
    assert batches.segment_stored(LEADER, batch_id, "p", found)
    assert not batches.segment_stored(LEADER, batch_id, "p", found), (
        "the reply was lost, or a crash before it"
    )
    left = one(batches, batch_id, LEADER)
    assert (left.live, left.uncollected, left.result_bytes) == (0, 1, len(entry(1)))
    found = batches.next_results(LEADER, batch_id, 5)
    assert found == Uncollected(1, [entry(1)])
    assert batches.segment_stored(LEADER, batch_id, "q", found)
    assert batches.get(batch_id).segments == ("p", "q")
    assert own.live() == set()
    own.store.close()


def test_results_that_redis_forgets_meanwhile_are_in_no_part(settings: Settings) -> None:
    """The lines run again."""
    own = Windows.begun(settings, owner="o")
    claim = own.claim(own.send([1, 2])[0])
    own.advance(claim, 1)
    own.advance(claim, 2, 1, 0)
    found = own.batches.next_results(LEADER, own.batch.id, 5)
    own.store.db.redis.ltrim(f"{own.store.db.prefix}batch:{own.batch.id}:results", 0, 0)
    assert not own.batches.segment_stored(LEADER, own.batch.id, "p", found)
    assert own.batches.get(own.batch.id).segments == ()
    found = own.batches.next_results(LEADER, own.batch.id, 5)
    assert own.batches.segment_stored(LEADER, own.batch.id, "q", found)
    own.store.close()


def test_a_part_of_a_batch_that_was_dropped_meanwhile_is_removed(batches: BatchStore) -> None:
    batch = made(batches)
    lead(batches)
    batches.finish("me", batch.id, "completed")
    batches.delete(batch.id)
    batches.cleaned(batch.id)
    with pytest.raises(LeadLost):
        batches.segment_stored("me", batch.id, "p", Uncollected(0, []))
    assert lead(batches).cleanup == [batch.id]


def test_nothing_is_sent_of_a_cancelled_batch(settings: Settings) -> None:
    own = Windows.begun(settings)
    batches, batch_id = own.batches, own.batch.id
    [window] = own.send([1])
    assert batches.stop(batch_id, Ending.CANCELLED).status is BatchStatus.CANCELLING
    now = one(batches, batch_id, LEADER).batch
    assert not own.windows.send(LEADER, now, (2, 0), [NewWindow("", [packed(2)])])
    assert batches.live(batch_id) == [window]
    assert own.windows.end_queued(window)
    assert batches.live(batch_id) == []
    assert own.live() == {"results"}, "so that an io worker of the release before does not take it for ended"
    batches.finalizing(LEADER, batch_id)
    batches.finalizing(LEADER, batch_id)
    batches.finish(LEADER, batch_id, "cancelled", output_file_id="file_o")
    batches.finish(LEADER, batch_id, "completed")
    ended = batches.get(batch_id)
    assert (ended.status, ended.failed, ended.output_file_id) == (BatchStatus.CANCELLED, 1, "file_o")
    assert ended.codes == {"batch_cancelled": 1}
    assert set(ended.times) >= {"cancelling", "cancelled"}
    assert batches.stop(batch_id, Ending.EXPIRED).status is BatchStatus.CANCELLED, "an end is an end"
    with pytest.raises(BatchNotFound):
        batches.stop("batch_none", Ending.CANCELLED)
    own.store.close()


def test_jobs_sent_one_by_one_are_held_while_there_is_no_room(batches: BatchStore, store: JobStore) -> None:
    def bulk(owner: str) -> tuple[str, bool]:
        job = store.create(NewJob({"prompt": "p"}, priority=Priority.BULK, owner=owner))
        return job.id, is_sent(store, job)

    assert bulk("a")[1], "nobody leads: nobody would send it later"
    assert batches.lead("me", {"": 2}) is not None
    assert bulk("a")[1]
    held = [bulk("a"), bulk("b"), bulk("a")]
    assert [sent for _, sent in held] == [False, False, False]
    work = batches.lead("me", {"": 2})
    assert work is not None
    assert (work.in_flight, work.deferred) == ({"": {"a": 2}}, {"": {"a": 2, "b": 1}})
    interactive = store.create(NewJob({"prompt": "p"}, owner="a"))
    assert is_sent(store, interactive), "interactive jobs have their own room"
    assert batches.release_deferred("me", {"a": 1, "b": 5}) == [held[0][0], held[1][0]]
    assert sent_ids(store, Priority.BULK)[-2:] == [held[0][0], held[1][0]]
    store.cancel(held[2][0])
    work = batches.lead("me", {"": 2})
    assert work is not None
    assert (work.in_flight, work.deferred) == ({"": {"a": 3, "b": 1}}, {})
    assert store.get(held[0][0]).status is Status.QUEUED
    claimed(store, held[0][0])


def test_time_to_expire_is_the_batchs_own(batches: BatchStore) -> None:
    soon = time.time() + 5
    assert made(batches, deadline=soon).expires_at == pytest.approx(soon, abs=0.01)


@pytest.mark.slow
def test_a_record_lasts_as_long_as_results_do(settings: Settings) -> None:
    store = JobStore(settings.model_copy(update={"result_ttl_s": 1}))
    batches = batch_store(store)
    short, long = made(batches), made(batches, output_expires_s=3600)
    lead(batches)
    for batch in (short, long):
        batches.validated("me", batch.id, chunks=0, lines=1, invalid={"a": 1}, errors=[], model=None)
        batches.segment_stored("me", batch.id, "p", Uncollected(0, []))
        batches.finish("me", batch.id, "completed")
        batches.cleaned(batch.id)

    def dropped() -> bool:
        store.reconcile()
        return not store.db.redis.keys(f"{store.db.prefix}*{short.id}*")

    wait_until(dropped)
    assert batches.get(long.id).ended
    assert [batch.id for batch in batches.page(5)[0]] == [long.id]
    assert lead(batches).cleanup == [short.id], "what a slow writer left meanwhile goes too"
    store.close()


def test_only_what_has_ended_is_deleted(batches: BatchStore) -> None:
    batch = made(batches)
    assert not batches.delete(batch.id)
    lead(batches)
    batches.finish("me", batch.id, "completed")
    assert batches.delete(batch.id)
    with pytest.raises(BatchNotFound):
        batches.delete(batch.id)


def test_every_answer_says_why_lines_failed(batches: BatchStore) -> None:
    new = NewBatch(CHAT, "file_x", idempotency_key="k", body_hash="h")
    batch = batches.create(new)
    lead(batches)
    batches.validated("me", batch.id, chunks=0, lines=1, invalid={"a": 1}, errors=[], model=None)
    assert batches.create(new).codes == {"a": 1}
    assert batches.stop(batch.id, Ending.CANCELLED).codes == {"a": 1}


def test_a_round_reads_no_lists_of_errors(batches: BatchStore) -> None:
    batch = made(batches, metadata={"a": "b"})
    lead(batches)
    batches.validated("me", batch.id, chunks=0, lines=1, invalid={"a": 1}, errors=[{"code": "a"}], model=None)
    seen = one(batches, batch.id).batch
    assert (seen.errors, seen.metadata) == ([], {})
    assert batches.get(batch.id).errors == [{"code": "a"}]


def test_names_of_models_with_the_separators_of_keys_and_accounts(store: JobStore) -> None:
    names = ["m", "m@n", "@m", "m:n", ":", "interactive", "ü *[a]\n"]
    Registry(store.db, 60).announce_models(names, 60)
    batches = BatchStore(store.db)
    assert batches.lead("me", {"": 1}) is not None
    store.create(NewJob(request={"prompt": "x"}, priority=Priority.BULK, owner="first"))
    ids = {}
    for name in names:
        for _ in range(2):  # one takes the room of its lane, the next is held
            new = NewJob(request={"prompt": "x"}, priority=Priority.BULK, owner="o", model=name)
            ids[name] = store.create(new).id
    work = lead(batches)
    assert work.deferred == {name: {"o": 1} for name in names}
    assert work.in_flight == {"": {"first": 1}} | {name: {"o": 1} for name in names}
    for name in names:
        assert batches.release_deferred("me", {"o": 1}, name) == [ids[name]]
        assert ids[name] in sent_ids(store, Priority.BULK, name)
    assert lead(batches).deferred == {}


def test_a_line_is_no_job_but_its_id_says_where_to_look(settings: Settings) -> None:
    own = Windows.begun(settings, owner="o")
    digits = own.batch.id.removeprefix("batch_")
    own.send([1])
    for ask in (own.store.get, own.store.cancel, own.store.delete):
        for owner in ("o", None):
            with pytest.raises(LineOfBatch, match=f"^line 1 of {own.batch.id}: see /v1/batches/"):
                ask(f"job_{digits}-1", owner)
        for job_id, owner in ((f"job_{digits}-1", "other"), ("job_x-1", "o"), (f"job_{digits}", "o")):
            with pytest.raises(JobNotFound) as refused:
                ask(job_id, owner)
            assert not isinstance(refused.value, LineOfBatch)
    own.store.close()
