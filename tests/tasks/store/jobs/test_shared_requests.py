"""Jobs that are made together: what their requests share is stored once, and readers get them whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tasks.base.errors import BudgetSpent, JobNotFound, LimitReached
from tasks.records.api_key import Limits
from tasks.records.job import Job, NewJob, Priority, Status
from tasks.store import stored_request
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tasks.store.scripts import Argument
from tests.support.servers import RedisServer, fast_settings
from tests.tasks.helpers.records import claimed, messages, sent_ids

PROMPT = "x" * 200_000
SEEDS = ({"seed": 1}, {"seed": 2}, {"seed": 3})


def new(prompt: str = PROMPT, **fields: Any) -> NewJob:
    return NewJob(request={"prompt": prompt, "max_tokens": 16, "seed": 0, "stop": ["é"]}, **fields)


def made(store: JobStore, *variants: dict[str, Any], **fields: Any) -> list[Job]:
    return store.create_all(new(**fields), variants or SEEDS)


def shared(store: JobStore) -> set[str]:
    return set(store.db.redis.scan_iter(f"{store.db.prefix}shared:*"))


def stored_bytes(store: JobStore) -> int:
    keys = store.db.redis.scan_iter(f"{store.db.prefix}*")
    return sum(store.db.redis.memory_usage(key, samples=0) or 0 for key in keys)


def test_the_prompt_is_stored_once(store: JobStore) -> None:
    jobs = made(store, *({"seed": seed} for seed in range(64)))
    assert len({job.id for job in jobs}) == 64
    assert stored_bytes(store) < 3 * len(PROMPT)


def test_every_reader_gets_the_whole_request(store: JobStore) -> None:
    jobs = made(store, owner="o")
    wanted = [{"prompt": PROMPT, "max_tokens": 16, "stop": ["é"], "seed": seed} for seed in (1, 2, 3)]
    assert [job.request for job in jobs] == wanted
    assert [store.get(job.id) for job in jobs] == jobs
    assert [store.refresh(job) for job in jobs] == jobs
    assert [store.watch(job, "gateway").request for job in jobs] == wanted
    assert [job.request for job in store.page(10).jobs][::-1] == wanted
    claim = claimed(store, jobs[1].id)
    assert claim.request == wanted[1]
    shown = repr(f"{len(PROMPT):,} chars")
    assert [message["headers"]["argsrepr"] for message in messages(store)] == [shown] * 3
    assert store.requeue(jobs[1].id, claim.fencing_token)
    assert claimed(store, jobs[1].id, token="again").request == wanted[1], "a second attempt too"
    assert [store.cancel(job.id).request for job in jobs] == wanted
    assert store.refresh(jobs[0]).status is Status.CANCELLED


def test_several_prompts_several_times(store: JobStore) -> None:
    variants = [{"prompt": prompt * 50_000, "seed": seed} for prompt in "abc" for seed in (7, 8)]
    jobs = made(store, *variants)
    for job, variant in zip(jobs, variants, strict=True):
        assert store.get(job.id).request == {"max_tokens": 16, "stop": ["é"], **variant}
        assert claimed(store, job.id).request["prompt"] == variant["prompt"]
    assert stored_bytes(store) < 2 * 150_000


def test_a_job_alone_shares_nothing(store: JobStore) -> None:
    store.create(new())
    assert not shared(store)


def test_messages_are_sent_for_all_but_those_held_back(store: JobStore) -> None:
    jobs = made(store)
    assert sent_ids(store) == [job.id for job in jobs]
    store.db.scripts.run("leader/lead", "me", '{"": 1}', "{}", 1, "id")  # with room for one bulk job
    first, *_ = made(store, priority=Priority.BULK)
    assert sent_ids(store, Priority.BULK) == [first.id]


def test_it_goes_with_the_last_job_that_refers_to_it(store: JobStore) -> None:
    first, second, third = made(store)
    for job in (first, third):
        store.cancel(job.id)
        store.delete(job.id)
    claim = claimed(store, second.id)
    assert claim.request["prompt"] == PROMPT
    store.cancel(second.id)
    assert store.finish(second.id, claim.fencing_token, Status.CANCELLED)
    store.delete(second.id)
    assert not shared(store)
    with pytest.raises(JobNotFound):
        store.refresh(second)


def test_it_goes_with_records_whose_time_has_passed(redis_server: RedisServer) -> None:
    store = JobStore(fast_settings(redis_server, result_ttl_s=1))
    for job in made(store, keep_s=0.0):
        store.cancel(job.id)
    assert store.reconcile().dropped == 3
    assert not shared(store)
    store.close()


def test_a_creation_that_is_sent_twice_makes_the_same_jobs(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a client does that lost the connection before the answer."""
    once = store.db.scripts.run

    def twice(name: str, *args: Argument) -> Any:
        once(name, *args)
        return once(name, *args)

    monkeypatch.setattr(store.db.scripts, "run", twice)
    jobs = store.create_all(new(), SEEDS)
    assert sent_ids(store) == [job.id for job in jobs]
    assert {job.id for job in store.page(10).jobs} == {job.id for job in jobs}
    assert len(store.page(10).jobs) == 3


@pytest.fixture
def narrow(redis_server: RedisServer) -> Iterator[JobStore]:
    """A store that takes five queued jobs."""
    store = JobStore(fast_settings(redis_server, max_queued=5))
    yield store
    store.close()


@pytest.mark.parametrize(
    ("limits", "error"),
    [(Limits(max_jobs=5), LimitReached), (Limits(tokens_per_day=5 * 16), BudgetSpent)],
)
def test_all_are_made_or_none(store: JobStore, limits: Limits, error: type[Exception]) -> None:
    key, _ = KeyStore(store.db).create("a", limits)
    made(store, owner=key.id)
    with pytest.raises(error):
        made(store, owner=key.id)
    assert len(store.page(10).jobs) == 3
    assert len(shared(store)) == 2, "one hash and the set of its jobs"
    made(store, *SEEDS[:2], owner=key.id)


def test_all_or_none_of_the_queue(narrow: JobStore) -> None:
    made(narrow)
    with pytest.raises(LimitReached, match="5 jobs are queued"):
        made(narrow)
    assert len(narrow.page(10).jobs) == 3
    made(narrow, *SEEDS[:2])


def test_a_page_is_not_larger_for_requests_that_are_stored_once(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_request, "PAGE_BYTES", 5 * len(PROMPT) // 2)
    jobs = made(store, *({"seed": seed} for seed in range(5)))
    seen: list[str] = []
    after, more = None, True
    while more:
        page = store.page(10, after=after)
        assert 1 <= len(page.jobs) <= 2
        seen += [job.id for job in page.jobs]
        after, more = seen[-1], page.has_more
    assert seen == [job.id for job in jobs[::-1]]
