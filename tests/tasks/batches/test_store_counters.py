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
from tasks.records.batch import Ending
from tasks.records.job import Status
from tasks.records.window import Group, LineEnd, NewWindow, Standing, WindowClaim
from tasks.store.jobs import JobStore, new_claim_id
from tasks.store.windows import WindowStore
from tests.tasks.helpers.batches import ROOM, made
from tests.tasks.helpers.records import batch_store
from tests.tasks.helpers.windows import MAX_TOKENS, entry, number_of, packed


class Counters(RuleBasedStateMachine):
    """One batch of lines that are sent, claimed, ended, lost and collected in any order, with restarts."""

    def __init__(self, store: JobStore, settings: Settings) -> None:
        super().__init__()
        self.store, self.settings = store, settings
        self.batches, self.windows = batch_store(store), WindowStore(store.db)

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
        self.live: dict[str, int] = {}  # windows, and how many of their lines have not ended
        self.claims: dict[str, WindowClaim] = {}
        self.open: dict[str, list[int]] = {}  # indexes that have not ended, of claimed ones
        self.groups: Counter[str] = Counter()
        self.ends: list[str] = []  # entries, in their order
        self.good = self.bad = self.parts = self.collected_lines = 0
        self.codes: Counter[str] = Counter()
        self.cancelled = False

    @rule(count=st.integers(1, 4), twice=st.booleans())
    def send(self, count: int, twice: bool) -> None:
        now = self.batches.get(self.batch.id)
        window = NewWindow("", [packed(n) for n in range(self.sent + 1, self.sent + count + 1)])
        done = self.windows.send(self.token, now, (0, self.sent + count), [window])
        assert done is not self.cancelled
        if twice:
            assert not self.windows.send(self.token, now, (0, self.sent + count), [window])
        if done:
            self.live[f"win_{now.id.removeprefix('batch_')}-{self.sent + 1}"] = count
            self.sent += count

    @precondition(lambda self: not self.cancelled and self.live.keys() - self.claims.keys())
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        window_id = data.draw(st.sampled_from(sorted(self.live.keys() - self.claims.keys())))
        claim = self.windows.claim(window_id, "w", new_claim_id())
        assert isinstance(claim, WindowClaim)
        self.claims[window_id], self.open[window_id] = claim, [*range(len(claim.lines))]
        self.groups[window_id] = 0
        self.advance(claim, [])

    def advance(self, claim: WindowClaim, ends: list[LineEnd], times: int = 1) -> None:
        self.groups[claim.window_id] += 1
        number = self.groups[claim.window_id]
        group = Group(claim.window_id, claim.fencing_token, number, len(claim.lines), ends)
        for _ in range(times):
            [answer] = self.windows.advance([group])
            assert answer.standing is not Standing.LOST

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), good=st.booleans(), twice=st.booleans())
    def finish(self, data: st.DataObject, good: bool, twice: bool) -> None:
        window_id = data.draw(st.sampled_from(sorted(self.claims)))
        claim, left = self.claims[window_id], self.open[window_id]
        index = left.pop(data.draw(st.integers(0, len(left) - 1)))
        text = entry(number_of(claim.lines[index]), failed=not good)
        status, code = (Status.SUCCEEDED, None) if good else (Status.FAILED, "c")
        self.advance(claim, [LineEnd(index, status, text, MAX_TOKENS, code, input_tokens=1)], 1 + twice)
        self.good, self.bad = self.good + good, self.bad + (not good)
        self.codes += Counter() if good else Counter("c")
        self.ends.append(text)
        self.live[window_id] -= 1
        if not left:
            del self.live[window_id], self.claims[window_id]

    @precondition(lambda self: self.claims and not self.cancelled)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """A worker that stops: the window is queued again, and a late end of a line is refused."""
        window_id = data.draw(st.sampled_from(sorted(self.claims)))
        claim = self.claims.pop(window_id)
        assert self.windows.release(window_id, claim.fencing_token)
        late = LineEnd(self.open[window_id][0], Status.SUCCEEDED, entry(1), MAX_TOKENS)
        group = Group(window_id, claim.fencing_token, self.groups[window_id] + 1, 1, [late])
        assert [answer.standing for answer in self.windows.advance([group])] == [Standing.LOST]

    @rule(most=st.integers(1, 5), crash=st.booleans(), twice=st.booleans())
    def collect(self, most: int, crash: bool, twice: bool) -> None:
        found = self.batches.next_results(self.token, self.batch.id, most)
        assert found.number == self.parts
        assert found.lines == self.ends[self.collected_lines :][:most]
        if crash or not found.lines:
            return
        for _ in range(1 + twice):
            self.batches.segment_stored(self.token, self.batch.id, f"p{found.number}", found)
        self.parts += 1
        self.collected_lines += len(found.lines)

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
        assert counts.input_tokens == len(self.ends)
        assert active.live == len(self.live)
        assert active.uncollected == len(self.ends) - self.collected_lines
        assert active.batch.offset == self.sent
        assert work.in_flight.get("", {}).get(self.owner, 0) == sum(self.live.values())


@pytest.mark.slow
def test_counters_hold_whatever_happens(store: JobStore, settings: Settings) -> None:
    run_state_machine_as_test(
        lambda: Counters(store, settings),
        settings=hypothesis_settings(
            max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
