"""Counters of a batch hold whatever happens in whatever order."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tasks.base.errors import LeadLost
from tasks.base.settings import Settings
from tasks.records.batch import Ending, line_job_id
from tasks.records.claim import Claim
from tasks.records.job import Status
from tasks.store.jobs import JobStore
from tests.tasks.helpers.batches import ROOM, claimed, lines, made
from tests.tasks.helpers.records import batch_store


class Counters(RuleBasedStateMachine):
    """One batch of lines that are sent, claimed, ended, lost and collected in any order, with restarts."""

    def __init__(self, store: JobStore, settings: Settings) -> None:
        super().__init__()
        self.store, self.settings = store, settings
        self.batches = batch_store(store)

    @initialize()
    def begin(self) -> None:
        self.token = uuid.uuid4().hex
        self.batches.resign(self.__dict__.get("previous", ""))
        self.store.db.redis.delete(f"{self.store.db.prefix}leader")  # it fell silent
        self.batches.lead(self.token, ROOM)
        self.batch = made(self.batches, owner=uuid.uuid4().hex)
        self.owner = self.batch.owner
        self.batches.chunks_ready(self.token, self.batch.id, 1, 0)
        self.sent = 0
        self.live: dict[str, Claim | None] = {}
        self.ends: list[str] = []  # job ids that ended, in their order
        self.good = self.bad = self.parts = self.collected_jobs = 0
        self.codes: Counter[str] = Counter()
        self.cancelled = False

    @rule(count=st.integers(1, 4), twice=st.booleans())
    def send(self, count: int, twice: bool) -> None:
        now = self.batches.get(self.batch.id)
        jobs = [(line_job_id(now.id, line.number), line) for line in lines(self.sent + 1, count)]
        done = self.batches.enqueue_lines(self.token, now, (0, self.sent + count), jobs)
        assert done is not self.cancelled
        if twice:
            assert not self.batches.enqueue_lines(self.token, now, (0, self.sent + count), jobs)
        if done:
            self.sent += count
            self.live |= dict.fromkeys([job_id for job_id, _ in jobs])

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.live)))
        if self.live[job_id] is None:
            self.live[job_id] = claimed(self.store, job_id)

    @precondition(lambda self: any(self.live.values()))
    @rule(data=st.data(), good=st.booleans(), twice=st.booleans())
    def finish(self, data: st.DataObject, good: bool, twice: bool) -> None:
        job_id = data.draw(st.sampled_from(sorted(j for j, claim in self.live.items() if claim)))
        claim = self.live.pop(job_id)
        assert claim is not None
        error = None if good else {"code": "c", "message": "m", "param": None}
        status = Status.SUCCEEDED if good else Status.FAILED
        for _ in range(1 + twice):
            assert self.store.finish(job_id, claim.fencing_token, status, {"usage": {}}, error)
        self.good, self.bad = self.good + good, self.bad + (not good)
        self.ends.append(job_id)

    @precondition(lambda self: any(self.live.values()))
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        """A worker that stops: the job is queued again, and a late end of it is refused."""
        job_id = data.draw(st.sampled_from(sorted(j for j, claim in self.live.items() if claim)))
        claim = self.live[job_id]
        assert claim is not None
        self.store.requeue(job_id, claim.fencing_token)
        assert not self.store.finish(job_id, claim.fencing_token, Status.SUCCEEDED, {"usage": {}})
        self.live[job_id] = None

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel_job(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.live)))
        if self.live[job_id] is None:
            self.store.cancel(job_id)
            del self.live[job_id]
            self.bad += 1
            self.ends.append(job_id)

    @rule(most=st.integers(1, 5), crash=st.booleans(), twice=st.booleans())
    def collect(self, most: int, crash: bool, twice: bool) -> None:
        ended = self.batches.next_results(self.token, self.batch.id, most)
        number, jobs = ended.number, ended.jobs
        assert number == self.parts
        assert [j.job_id for j in jobs] == self.ends[self.collected_jobs :][:most]
        if crash or not jobs:
            return
        codes = Counter("c" for j in jobs if j.error)
        for _ in range(1 + twice):
            self.batches.segment_stored(
                self.token, self.batch.id, number, f"p{number}", len(jobs), (len(jobs), 0, 1), codes
            )
        self.parts += 1
        self.collected_jobs += len(jobs)
        self.codes += codes

    @rule()
    def other_leader(self) -> None:
        old = self.token
        self.batches.resign(old)
        self.token = uuid.uuid4().hex
        assert self.batches.lead(self.token, ROOM) is not None
        with pytest.raises(LeadLost):
            self.batches.next_results(old, self.batch.id, 1)

    @precondition(lambda self: not self.cancelled and self.sent > 3)
    @rule()
    def cancel_batch(self) -> None:
        self.batches.stop(self.batch.id, Ending.CANCELLED)
        self.cancelled = True

    @invariant()
    def counters_hold(self) -> None:
        if not hasattr(self, "batch"):
            return
        work = self.batches.lead(self.token, ROOM)
        assert work is not None
        active = next(a for a in work.active if a.batch.id == self.batch.id)
        counts = self.batches.get(self.batch.id)
        assert (counts.completed, counts.failed, counts.codes) == (self.good, self.bad, self.codes)
        assert counts.input_tokens == self.collected_jobs
        assert active.live == len(self.live)
        assert active.uncollected == len(self.ends) - self.collected_jobs
        assert active.batch.offset == self.sent
        assert work.in_flight.get("", {}).get(self.owner, 0) == len(self.live)


@pytest.mark.slow
def test_counters_hold_whatever_happens(store: JobStore, settings: Settings) -> None:
    run_state_machine_as_test(
        lambda: Counters(store, settings),
        settings=hypothesis_settings(
            max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
