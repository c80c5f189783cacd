"""A batch of two lines in every interleaving: two io workers that may lead, crashes, and jobs that get lost.

Whoever holds a job may end it, hand it back or be lost, and come back late. As with one job, until there is
no new state.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import redis

from tests.tasks.explorer import CLOCK, PREFIX, Broken, Keys, Model, Server, Step, explore
from tests.tasks.test_interleavings import LIST, MOST_STATES, MS, NEVER, TERMINAL, TTL

BATCH, OWNER = "b", "o"
JOBS = ("j1", "j2")  # of the lines 1 and 2
LEADERS = ("x", "y")
CAP = 9
RECONCILE = (CAP, NEVER, TTL, MS, NEVER, 200, MS, "bulk", PREFIX + LIST)
CODE = "c"


@dataclass(frozen=True)
class Leader:
    """What an io worker remembers: where the batch was, or results that are in a part but not counted.

    seen: chunk, place, jobs that live, results that are not collected, why the batch ends.
    """

    seen: tuple[int, int, int, int, str] | None = None
    part: tuple[int, tuple[str, ...]] | None = None


@dataclass(frozen=True)
class State:
    """held, stale: fences of each job's holder, and of one that lost it. parts: jobs in what was counted."""

    keys: Keys
    leaders: tuple[Leader, Leader] = (Leader(), Leader())
    held: tuple[int, int] = (0, 0)
    stale: tuple[int, int] = (0, 0)
    parts: tuple[str, ...] = ()

    @property
    def batch(self) -> dict[str, str]:
        record: dict[str, str] = self.keys[f"hash batch:{BATCH}"]
        return record

    def status(self, job: str) -> str | None:
        record = self.keys.get(f"hash job:{job}")
        return None if record is None else record["status"]

    def with_leader(self, index: int, leader: Leader) -> State:
        leaders = list(self.leaders)
        leaders[index] = leader
        return replace(self, leaders=tuple(leaders))

    def with_fences(self, number: int, held: int, stale: int) -> State:
        both = list(self.held), list(self.stale)
        both[0][number], both[1][number] = held, stale
        return replace(self, held=tuple(both[0]), stale=tuple(both[1]))


class BatchLife(Model[State]):
    """From when its file is read: what comes before has no counters that jobs change."""

    def __init__(self, server: Server, cancels: bool) -> None:
        self._cancels = cancels
        created = (BATCH, "+86400", "", "", 0, "file", "owner", OWNER)
        keys: Keys = {f"string {CLOCK}": "1000"}
        for name, arguments in (
            ("batch_create", created),
            ("batch_lead", ("x", 64, 4, "id")),
            ("batch_validated", ("x", BATCH, 1, 2, 0, "[]", "")),
        ):
            [(_, keys)] = server.run([(keys, name, arguments)])
        self._first = State(keys)

    def start(self) -> State:
        return self._first

    def keys(self, state: State) -> Keys:
        return state.keys

    def ended(self, state: State) -> bool:
        return state.batch["status"] in ("completed", "cancelled")

    def steps(self, state: State) -> list[Step[State]]:
        steps = [Step("time passes", lambda *_: _later(state))]
        if self._cancels:
            end = (BATCH, "cancelled")
            steps.append(
                Step("cancel", lambda _, keys: replace(state, keys=keys), "batch_end", end, own=False)
            )
        for number in range(len(JOBS)):
            steps += _of_job(state, number)
        for index in range(len(LEADERS)):
            steps += _of_leader(state, index)
        steps.append(Step("reconcile", lambda _, keys: _reconciled(state, keys), "reconcile", RECONCILE))
        return steps

    def essence(self, state: State) -> Hashable:
        names = [
            name for name in state.keys if name.startswith(("hash job", "hash batch", "list b", "set b"))
        ]
        jobs = tuple(
            (name, *(record.get(part) for part in ("status", "cancel_requested", "batch")))
            for name in sorted(names)
            if name.startswith("hash job") and (record := state.keys[name])
        )
        fields = ("status", "place", "completed", "failed", "parts", "ending", "finalizing_at")
        now = int(state.keys[f"string {CLOCK}"]) * MS
        overdue = tuple(score <= str(now) for score in state.keys.get("zset leases", {}).values())
        return (
            tuple(
                bool(state.batch.get(name)) if name.endswith("_at") else state.batch.get(name)
                for name in fields
            ),
            jobs,
            tuple(state.keys.get(f"list batch:{BATCH}:ended", [])),
            state.keys.get("string led_by"),
            "string leader" in state.keys,
            overdue,
            state.leaders,
            tuple(map(bool, state.held)),
            tuple(map(bool, state.stale)),
            state.parts,
        )

    def check(self, before: State, step: Step[State], answer: Any, after: State) -> None:
        batch, keys = after.batch, after.keys
        assert len(set(after.parts)) == len(after.parts), "a result was counted twice"
        sent = int(batch["place"]) if batch["chunk"] == "0" else len(JOBS)
        there = [job for job in JOBS[:sent] if after.status(job) is not None]
        live = [job for job in there if after.status(job) not in TERMINAL]
        ended = [job for job in there if job not in live]
        if self.ended(after):
            assert int(batch["completed"]) + int(batch["failed"]) == len(JOBS), "lines are missing in the end"
            assert len(after.parts) == sent, "results are missing in the end"
            assert after.batch == before.batch or not self.ended(before), "an ended batch has changed"
            return
        unsent = len(JOBS) - sent if batch.get("finalizing_at") else 0
        counted = int(batch["completed"]) + int(batch["failed"])
        assert counted == len(ended) + len(after.parts) + unsent, "the counters disagree with the records"
        assert sorted(keys.get(f"set batch:{BATCH}:live", [])) == live, "the wrong jobs are live"
        assert sorted(keys.get(f"list batch:{BATCH}:ended", [])) == ended, "the wrong jobs have ended"
        assert keys.get("hash outstanding", {OWNER: "0"}) == {OWNER: str(len(live))}, (
            "the share is miscounted"
        )
        assert sorted((*there, *after.parts)) == list(JOBS[:sent]), "a line was lost"


def _later(state: State) -> State:
    """A lease runs out, and so does the lead of whoever is silent."""
    keys = {
        name: value for name, value in state.keys.items() if name not in ("string leader", "string bulk_room")
    }
    return replace(state, keys={**keys, f"string {CLOCK}": str(int(keys[f"string {CLOCK}"]) + 1)})


def _reconciled(state: State, keys: Keys) -> State:
    after = replace(state, keys=keys)
    for number, job in enumerate(JOBS):
        if state.status(job) == "running" and after.status(job) != "running":
            after = after.with_fences(number, 0, state.held[number])
    return after


def _of_job(state: State, number: int) -> list[Step[State]]:
    """A message of it may come at any time; its holder may be lost, and its end come late."""
    job, held, stale = JOBS[number], state.held[number], state.stale[number]

    def claimed(answer: Any, keys: Keys) -> State:
        after = replace(state, keys=keys)
        if answer[0] != "claimed":
            return after
        return after.with_fences(number, int(answer[1]), held or stale)

    def wrote(_: Any, keys: Keys) -> State:
        return replace(state, keys=keys).with_fences(number, 0, stale)

    def wrote_late(answer: Any, keys: Keys) -> State:
        assert answer == 0, "a late end was taken"
        return replace(state, keys=keys).with_fences(number, held, 0)

    steps: list[Step[State]] = []
    status = state.status(job)
    if status in ("queued", "running") and not stale:
        token = f"t{int(state.keys[f'hash job:{job}']['fence']) + 1}"
        steps.append(Step(f"{job} is claimed", claimed, "claim", (job, "w", token, MS, CAP, TTL, "")))
    if held:
        for how in ("succeeded", "failed") if number == 0 else ("succeeded",):
            steps.append(Step(f"{job} has {how}", wrote, "finish", (job, held, how, "", "", "", TTL)))
        steps.append(Step(f"{job} is handed back", wrote, "hand_back", (job, held, TTL), own=False))
    if stale:
        late = (job, stale, "succeeded", "", "", "", TTL)
        steps.append(Step(f"{job} ends late", wrote_late, "finish", late))
    return steps


def _of_leader(state: State, index: int) -> list[Step[State]]:
    token, me = LEADERS[index], state.leaders[index]

    def led(answer: Any, keys: Keys) -> State:
        after = replace(state, keys=keys)
        if not answer[0] or not answer[4]:
            return after.with_leader(index, Leader(None, me.part))
        [[values, live, uncollected]] = answer[4]
        seen = (int(values[0]), int(values[1]), live, uncollected, values[2])
        return after.with_leader(index, Leader(seen, me.part))

    def forgot(_: Any, keys: Keys) -> State:
        return replace(state, keys=keys).with_leader(index, Leader(None, me.part))

    def read(answer: Any, keys: Keys) -> State:
        after = replace(state, keys=keys)
        if answer[0] == "lost" or len(answer) == 2:
            return after.with_leader(index, Leader())
        return after.with_leader(index, Leader(None, (int(answer[1]), tuple(job[0] for job in answer[2:]))))

    def counted(answer: Any, keys: Keys) -> State:
        assert me.part is not None
        after = replace(state, keys=keys).with_leader(index, Leader())
        return replace(after, parts=(*state.parts, *me.part[1])) if answer == "ok" else after

    lead = (token, 64, 4, "chunk", "place", "ending")
    steps = [Step(f"{token} leads", led, "batch_lead", lead)]
    if me.part is None:
        steps.append(Step(f"{token} writes a part", read, "batch_ended", (token, BATCH, 1)))
    else:
        number, jobs = me.part
        done = (token, BATCH, number, f"{token}{number}", len(jobs), 1, 0, 1)
        steps.append(Step(f"{token} counts the part", counted, "batch_collected", done))
        steps.append(Step(f"{token} is killed", lambda *_: state.with_leader(index, Leader()), own=False))
    if me.seen is not None:
        steps += _of_seen(state, token, me.seen, forgot)
    return steps


def _of_seen(state: State, token: str, seen: tuple[int, int, int, int, str], then: Any) -> list[Step[State]]:
    """What a leader does by what it saw, which may be long ago."""
    chunk, place, live, uncollected, ending = seen
    steps: list[Step[State]] = []
    if chunk == 0 and not ending:
        after = (1, 0) if place + 1 == len(JOBS) else (0, place + 1)
        line = (JOBS[place], place + 1, f"id-{place}", "", "{}", "")
        steps.append(
            Step(f"{token} sends a line", then, "batch_fill", (token, BATCH, chunk, place, *after, *line))
        )
    if ending:
        steps += [
            Step(f"{token} cancels {job}", then, "cancel", (job, TTL))
            for job in JOBS
            if state.status(job) in ("queued", "running")
        ]
    if (chunk == 1 or ending) and not live and not uncollected:
        unsent = 0 if chunk else len(JOBS) - place
        finalizing = (token, BATCH, unsent, CODE)
        steps.append(
            Step(
                f"{token} finalises",
                lambda _, keys: replace(state, keys=keys),
                "batch_finalizing",
                finalizing,
            )
        )
        if state.batch.get("finalizing_at"):
            end = "cancelled" if ending else "completed"
            steps.append(Step(f"{token} ends it", then, "batch_finish", (token, BATCH, TTL, end)))
    return steps


@pytest.mark.parametrize("cancels", [False, True])
def test_counters_are_right_in_every_interleaving(scratch: redis.Redis, cancels: bool) -> None:
    server = Server(scratch)
    found = explore(server, BatchLife(server, cancels), MOST_STATES)
    print(found)
    assert found.ended > 0


MUTATIONS = [
    ("batch_collected", "if redis.call('HGET', key, 'parts') ~= ARGV[3] then return 'moved' end", ""),
    ("batch_collected", "if not leads(ARGV[1]) then return 'lost' end", ""),
    ("batch_fill", "if batch[1] ~= ARGV[3] or batch[2] ~= ARGV[4] then return 'moved' end", ""),
    ("batch_finalizing", "if not redis.call('HGET', key, 'finalizing_at') then", "if true then"),
    ("finish", " or job.fence ~= fence then", " then"),
]


@pytest.mark.parametrize(("script", "old", "new"), MUTATIONS)
def test_a_script_with_a_fault_is_found_out(scratch: redis.Redis, script: str, old: str, new: str) -> None:
    server = Server(scratch, {script: (old, new)})
    with pytest.raises(Broken) as caught:
        explore(server, BatchLife(server, cancels=False), MOST_STATES)
    print(script, caught.value)
