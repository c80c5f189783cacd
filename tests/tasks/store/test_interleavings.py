"""The life of a job in every interleaving: two workers, messages, the reconciler, a client, and time.

All that workers may do, also late, twice or never, in every order: not up to a depth, but until no new state
is found. The same scripts that production runs, on a real server; only the clock is a key that a step moves.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any, NamedTuple

import pytest
import redis

from tasks.store.scripts import Argument, pairs
from tests.tasks.helpers.explorer import CLOCK, PREFIX, Broken, Keys, Known, Model, Server, Step, explore

pytestmark = pytest.mark.slow

JOB, OWNER, LIST, MODEL = "job_1", "key_o", "queue", "m"
RESERVED = 80  # bytes for its result
SET_ASIDE, TOOK = 10, 7  # tokens of its owner: while it lives, and in the end if it ran
LEASE = RESEND = 1  # ticks of the clock, a second each
OLD = 2  # ticks; a time longer ago than this is like any other
CAP = 2  # attempts
BEGAN = 1000  # what the clock says first
DEADLINE = BEGAN + 2  # of a job that has one
MESSAGES = 2  # copies of the job's message in the queue at most
MS = 1000
TTL = 10**9  # ms; no record is dropped here
NEVER = 10**9  # ms
RECONCILE = {
    "max_attempts": CAP,
    "resend_after_ms": RESEND * MS,
    "ttl_ms": TTL,
    "lease_ms": LEASE * MS,
    "gap_ms": NEVER,
    "limit": 200,
}
QUEUES = {p: [(p, "", PREFIX + LIST), (p, MODEL, PREFIX + LIST)] for p in ("bulk", "interactive")}
TERMINAL = ("succeeded", "failed", "cancelled", "expired")
HOOK = json.dumps({"url": "http://x/", "to": "x:80", "events": [f"job.{status}" for status in TERMINAL]})
WORKERS = ("a", "b")
HOLDING = ("waiting", "running")
LEADER = "l"
LEADS = {"string led_by": LEADER, "string interactive_room": '{"":0}'}  # there is no room: jobs are held
MOST_STATES = 50_000


class Worker(NamedTuple):
    """What one remembers: a message it has taken, then its claim, then that it has written an end.

    waiting: a claim that is to have the engine to itself, and has not yet.
    """

    stage: str = "idle"  # | taken | waiting | running | wrote
    token: str = ""
    fencing_token: int = 0
    told_to_stop: bool = False


class State(NamedTuple):
    """keys: of the server. winner: the fence that wrote the end. tokens: claims so far, to name the next.

    entered: how often the job was put into an engine, without those that handed it back.
    """

    keys: Keys
    workers: tuple[Worker, Worker]
    winner: int = 0
    tokens: int = 0
    entered: int = 0

    @property
    def job(self) -> dict[str, str]:
        record: dict[str, str] = self.keys[f"hash job:{JOB}"]
        return record

    @property
    def terminal(self) -> bool:
        return self.job["status"] in TERMINAL

    @property
    def now(self) -> int:
        return int(self.keys[f"string {CLOCK}"])

    @property
    def overdue(self) -> bool:
        return bool(self.job["deadline"]) and int(self.job["deadline"]) <= self.now * MS

    @property
    def queue(self) -> list[str]:
        messages: list[str] = self.keys.get(f"list {LIST}", [])
        return messages

    def with_worker(self, index: int, **changes: Any) -> State:
        workers = list(self.workers)
        workers[index] = workers[index]._replace(**changes)
        return self._replace(workers=tuple(workers))

    def idle(self, index: int) -> State:
        return self.with_worker(index, stage="idle", token="", fencing_token=0, told_to_stop=False)

    def with_messages(self, count: int) -> State:
        """More than MESSAGES are like MESSAGES."""
        keys = {name: value for name, value in self.keys.items() if name != f"list {LIST}"}
        if count:
            keys[f"list {LIST}"] = [JOB] * min(count, MESSAGES)
        return self._replace(keys=keys)


def finish(fencing_token: int, status: str) -> Argument:
    return {
        "id": JOB,
        "fencing_token": fencing_token,
        "status": status,
        "model": "",
        "ttl_ms": TTL,
        "tokens": TOOK,
    }


class JobLife(Model[State]):
    """One bulk job of an API key, with a webhook: its owner's share, seat and tokens are counted too.

    deadline: ms, or None. model: that it asks for, not known when it was created, but by now. serve: what the
    workers have. ends: the statuses in which the job has been seen. held: it is an interactive one, held
    until a leader releases it, which may die before it sends the message.
    """

    def __init__(
        self,
        server: Server,
        deadline: int | None = None,
        model: str = "",
        serve: tuple[str, str] = ("", ""),
        held: bool = False,
    ) -> None:
        self._model, self._serve, self._held = model, serve, held
        self._priority = "interactive" if held else "bulk"
        self._counts = "interactive_" if held else ""
        create = {
            "priority": self._priority,
            "model": model,
            "metadata": "{}",
            "deadline_ms": deadline,
            "owner": OWNER,
            "streaming": False,
            "traceparent": "",
            "webhook": HOOK,
            "max_tokens": SET_ASIDE,
            "reserved_bytes": RESERVED,
            "idempotency_key": "",
            "max_queued": 1000,
            "max_stored_bytes": 10**9,
            "idempotency_ttl_ms": 0,
            "jobs": [{"id": JOB, "preview": "", "prompt": ""}],
        }
        began = {f"string {CLOCK}": str(BEGAN), **(LEADS if held else {})}
        [(answer, keys)] = server.run([(began, "jobs/create", (create, "{}"))])
        assert answer[3] == ("" if held else "1")
        if model:
            keys["zset models"] = {model: "1"}
        self._first = State(keys, (Worker(), Worker())).with_messages(0 if held else 1)
        self.ends: set[str] = set()

    def start(self) -> State:
        return self._first

    def keys(self, state: State) -> Keys:
        return state.keys

    def ended(self, state: State) -> bool:
        return state.terminal

    def steps(self, state: State) -> list[Step[State]]:
        if state.terminal and all(worker.stage == "idle" for worker in state.workers):
            return self._late(state)
        steps = self._system(state)
        for index in range(len(WORKERS)):
            steps += self._of_worker(state, index)
        return steps

    def _system(self, state: State) -> list[Step[State]]:
        queued = len(state.queue)

        def reconciled(sent: bool) -> Any:
            def then(answer: Any, keys: Keys) -> State:
                after = state._replace(keys=keys)
                return after.with_messages(queued + len(answer[1:])) if sent else after

            return then

        def tick(_: Any, keys: Keys) -> State:
            return state._replace(keys={**keys, f"string {CLOCK}": str(state.now + 1)})

        def released(sent: bool) -> Any:
            def then(answer: Any, keys: Keys) -> State:
                after = state._replace(keys=keys)
                return after.with_messages(queued + len(answer[1:]) // 3) if sent else after

            return then

        reconcile = ({**RECONCILE, "queues": QUEUES[self._priority]},)
        release = (LEADER, self._priority, OWNER, 1)
        of_leader = [
            Step("released", released(sent=True), "queues/release_deferred", release),
            Step(
                "released, message lost",
                released(sent=False),
                "queues/release_deferred",
                release,
                own=False,
            ),
        ]
        return [
            *(of_leader if self._held else ()),
            Step("time passes", tick),
            Step("reconcile", reconciled(sent=True), "queues/reconcile", reconcile),
            Step("reconcile, message lost", reconciled(sent=False), "queues/reconcile", reconcile, own=False),
            Step("message comes again", lambda *_: state.with_messages(queued + 1), own=False),
            Step(
                "cancel", lambda _, keys: state._replace(keys=keys), "jobs/cancel", (JOB, TTL, ""), own=False
            ),
        ]

    def _late(self, state: State) -> list[Step[State]]:
        """What can still come when the job has ended and nobody holds it: it must change nothing."""
        return [step for step in self._system(state) if step.name != "time passes"] + [
            step for step in self._of_worker(state, 0) if step.name.startswith("a takes")
        ]

    def _of_worker(self, state: State, index: int) -> list[Step[State]]:
        worker, name = state.workers[index], WORKERS[index]
        steps: list[Step[State]] = []
        if worker.stage == "idle":
            if state.queue:
                steps.append(Step(f"{name} takes a message", lambda *_: self._taken(state, index)))
            return steps
        steps.append(Step(f"{name} is killed", lambda *_: state.idle(index), own=False))
        if worker.stage == "taken":
            claim = self._claim(index, worker)
            steps.append(
                Step(
                    f"{name} claims",
                    lambda got, keys: self._claimed(state, index, got, keys),
                    "jobs/claim",
                    claim,
                )
            )
            if self._model:  # before it sends the message on
                killed = Step(
                    f"{name} claims and is killed",
                    lambda _, keys: state._replace(keys=keys).idle(index),
                    "jobs/claim",
                    claim,
                    own=False,
                )
                steps.append(killed)
        elif worker.stage in HOLDING:
            steps += self._of_running(state, index)
        else:
            again = (finish(worker.fencing_token, "failed"), "", "{}")
            steps.append(
                Step(
                    f"{name} writes again",
                    lambda _, keys: state._replace(keys=keys),
                    "jobs/finish",
                    again,
                    own=False,
                )
            )
            steps.append(Step(f"{name} is done", lambda *_: state.idle(index)))
        return steps

    def _of_running(self, state: State, index: int) -> list[Step[State]]:
        worker, name = state.workers[index], WORKERS[index]
        claim = self._claim(index, worker)
        status = "cancelled" if worker.told_to_stop else "expired" if state.overdue else "succeeded"
        end = (finish(worker.fencing_token, status), "{}", "")

        def beaten(answer: Any, keys: Keys) -> State:
            after = state._replace(keys=keys)
            if answer == ["lost"]:
                return after.idle(index)
            return after.with_worker(index, told_to_stop=worker.told_to_stop or answer == ["cancel"])

        def wrote(answer: Any, keys: Keys) -> State:
            after = state._replace(keys=keys)
            if answer != 1:
                return after.idle(index)
            return after._replace(winner=worker.fencing_token).with_worker(index, stage="wrote")

        def handed_back(sent: bool) -> Any:
            def then(answer: Any, keys: Keys) -> State:
                back = answer == 1 and worker.stage == "running"
                after = state._replace(keys=keys, entered=state.entered - back).idle(index)
                return after.with_messages(len(state.queue) + 1) if sent and answer == 1 else after

            return then

        def once_more(answer: Any, keys: Keys) -> State:
            return self._claimed(state, index, answer, keys)

        def begun(answer: Any, keys: Keys) -> State:
            after = state._replace(keys=keys)
            if answer != 1:
                return after.idle(index)
            return after._replace(entered=state.entered + 1).with_worker(index, stage="running")

        back = (JOB, worker.fencing_token, TTL)
        onwards = Step(f"{name} writes", wrote, "jobs/finish", end)
        if worker.stage == "waiting" and not state.overdue:
            onwards = Step(f"{name} begins", begun, "jobs/start_isolated", (JOB, worker.fencing_token))
        return [
            onwards,
            Step(f"{name} beats", beaten, "jobs/heartbeat", (LEASE * MS, JOB, worker.fencing_token)),
            Step(f"{name} hands back", handed_back(sent=True), "jobs/requeue", back, own=False),
            Step(
                f"{name} hands back, message lost", handed_back(sent=False), "jobs/requeue", back, own=False
            ),
            Step(f"{name} claims again, its answer was lost", once_more, "jobs/claim", claim, own=False),
        ]

    def _claim(self, index: int, worker: Worker) -> tuple[Argument]:
        return (
            {
                "id": JOB,
                "worker": WORKERS[index],
                "claim_id": worker.token,
                "lease_ms": LEASE * MS,
                "max_attempts": CAP,
                "ttl_ms": TTL,
                "model": self._serve[index],
                "isolates": True,
            },
        )

    def _taken(self, state: State, index: int) -> State:
        after = state.with_messages(len(state.queue) - 1)
        after = after._replace(tokens=state.tokens + 1)
        return after.with_worker(index, stage="taken", token=f"t{after.tokens}")

    def _claimed(self, state: State, index: int, answer: Any, keys: Keys) -> State:
        after = state._replace(keys=keys)
        if answer[0] == "elsewhere":
            return after.idle(index).with_messages(len(state.queue) + 1)
        if answer[0] != "claimed":
            return after.idle(index)
        claimed = pairs(answer[1:])
        stage, fencing_token = (
            "waiting" if claimed["isolated"] == "1" else "running",
            int(claimed["fencing_token"]),
        )
        enters = stage == "running" and fencing_token != state.workers[index].fencing_token
        after = after._replace(entered=state.entered + enters)
        return after.with_worker(index, stage=stage, fencing_token=fencing_token)

    # What may be told apart, and what must hold

    def essence(self, state: State) -> Hashable:
        job, now = state.job, state.now

        def ago(ms: str | int | None) -> int | None:
            return None if not ms else max(-OLD, int(ms) // MS - now)

        fencing_token = int(job["fence"])
        workers = tuple(
            (
                w.stage,
                w.token == job.get("claim_token"),
                min(2, fencing_token - w.fencing_token),
                w.told_to_stop,
            )
            for w in state.workers
        )
        ended = (job["status"], job.get("written_fence") == job["fence"]) if state.terminal else None
        live = (
            None
            if state.terminal
            else (
                job["status"],
                job["attempts"],
                state.entered,
                job.get("uncounted"),
                bool(job.get("cancel_requested")),
                ago(job.get("lease_until")) if job["status"] == "running" else None,
                ago(job["enqueued_at"]),
                ago(state.keys.get(f"string claimed:{self._priority}")),
                ago(state.keys.get(f"string claimed:{self._priority}:{MODEL}")),
                "hash interactive_held" in state.keys,
                job.get("counted"),
                max(0, int(job["deadline"]) // MS - now) if job["deadline"] else None,
                "zset deadlines" in state.keys,
            )
        )
        named = tuple(sorted(workers)) if self._serve[0] == self._serve[1] else workers
        return ended, live, len(state.queue), named, job.get("lane")

    def check(self, before: State, step: Step[State], answer: Any, after: State) -> None:
        job, keys = after.job, after.keys
        if before.terminal:
            assert job == before.job, "an ended job has changed"
        if step.script in ("jobs/heartbeat", "jobs/start_isolated", "jobs/finish", "jobs/requeue"):
            self._check_token(before, step, answer)
        if step.script == "jobs/claim" and answer[0] == "claimed":
            serves = self._serve[WORKERS.index(step.name[0])]
            assert not serves or serves == self._model, "given to a worker of another model"
            holder = before.job["claim_token"] if before.job["status"] == "running" else None
            if holder != before.workers[WORKERS.index(step.name[0])].token:  # else its first answer was lost
                assert holder is None or int(before.job["lease_until"]) <= before.now * MS, (
                    "taken from one whose lease holds"
                )
                assert not before.overdue, "given to a worker after its deadline"
        if step.script == "jobs/finish" and answer == 1:
            assert before.terminal or before.job["status"] == "running", "an end of a job that does not run"
            assert before.winner in (0, after.winner), "two winners"
            assert before.terminal == (step.name.endswith("again")), "an end was written twice"
            assert str(after.winner) == job["fence"], "the winner's claim was not the last"
        assert int(job["attempts"]) <= CAP, "more attempts than the cap"
        assert after.entered <= CAP, "in an engine more often than the cap allows"
        holders = [w.fencing_token for w in after.workers if w.stage in HOLDING]
        assert len(set(holders)) == len(holders), "two hold the same claim"
        live = not after.terminal
        if not live:
            self.ends.add(job["status"])
        if step.script == "queues/reconcile":
            assert not (after.overdue and job["status"] == "queued"), "it waits on after its deadline"
        if not live or job["status"] == "queued":  # of a running one the engine sees to it
            has = live and bool(job["deadline"])
            assert ("zset deadlines" in keys) == has, f"{job['status']}, listed with a deadline: {not has}"
        statuses = [name for name in ("queued", "running", *TERMINAL) if f"zset status:{name}" in keys]
        assert statuses == [job["status"]], f"listed as {statuses}"
        held = self._held and "hash interactive_held" in keys
        assert held == (f"zset interactive_held:{OWNER}" in keys), "held jobs are miscounted"
        counted = live and (job.get("counted") == "1" or not self._held)  # else it was run without a release
        assert not (held and counted), "it is held, and takes a place"
        if step.script == "queues/release_deferred" and len(answer) > 1:
            assert counted, "released, and takes no place"
        lists = {
            "zset leases": job["status"] == "running",
            "zset expiry": not live,
            f"hash {self._counts}outstanding": counted,
            "hash live": live,
            f"hash hook:evt_{JOB.removeprefix('job_')}": not live,
        }
        model_queue = f":{job['lane']}" if job.get("lane") else ""
        sent = job["status"] == "queued" and not held
        assert not held or job["status"] == "queued", f"{job['status']}, and held"
        waiting = [f"zset pending:{self._priority}{model_queue}"] if sent else []
        assert [name for name in keys if name.startswith("zset pending")] == waiting, "waits in another queue"
        for name, there in lists.items():
            assert (name in keys) == there, f"{job['status']}, and {name} is {keys.get(name)}"
        if counted:
            account = f"{OWNER}@{job['lane']}" if job.get("lane") else OWNER
            places = keys[f"hash {self._counts}outstanding"]
            assert places == {account: "1"}, "its owner's share is miscounted"
        if live:
            assert keys["hash live"] == {OWNER: "1"}, "its owner's seat is miscounted"
        else:
            assert keys["string hook_seq"] == "1", "its webhook was put into the outbox twice"
        spent = SET_ASIDE if live else TOOK if after.winner else 0
        assert keys[f"string owner:{OWNER}:tokens:0"] == str(spent), "its owner's tokens are miscounted"
        stored = sum(int(record["stored"]) for name, record in keys.items() if "stored" in record)
        assert keys["hash stored_bytes"] == {OWNER: str(stored)}, "its owner's bytes are miscounted"

    def _check_token(self, before: State, step: Step[State], answer: Any) -> None:
        worker, job = before.workers[WORKERS.index(step.name[0])], before.job
        current = str(worker.fencing_token) == job["fence"] and (
            worker.stage == "wrote" or job["status"] == "running"
        )
        if step.script == "jobs/requeue":  # 0 too when it ends as cancelled
            assert current or answer == 0, "handed back by one that has lost it"
        else:
            assert (answer in (1, ["ok"], ["cancel"])) == current, (
                f"{answer} for a claim that is current: {current}"
            )


@pytest.fixture(scope="module")
def known() -> Known:
    return Known()


def test_no_interleaving_gives_two_winners_or_a_stuck_job(scratch: redis.Redis, known: Known) -> None:
    server = Server(scratch, known=known)
    life = JobLife(server)
    found = explore(server, life, MOST_STATES)
    print(found)
    assert found.ended > 10
    assert found.states > 100
    assert life.ends == {"succeeded", "failed", "cancelled"}


def test_no_interleaving_runs_a_job_after_its_deadline_or_leaves_it_waiting(
    scratch: redis.Redis, known: Known
) -> None:
    server = Server(scratch, known=known)
    life = JobLife(server, DEADLINE * MS)
    print(explore(server, life, MOST_STATES))
    assert life.ends == {"succeeded", "cancelled", "expired"}, "it comes before two leases have run out"


def test_no_interleaving_gives_a_job_to_a_worker_of_another_model(scratch: redis.Redis, known: Known) -> None:
    server = Server(scratch, known=known)
    life = JobLife(server, model=MODEL, serve=(MODEL, "other"))
    found = explore(server, life, MOST_STATES)
    print(found)
    assert life.ends == {"succeeded", "failed", "cancelled"}
    assert {"a claims", "b claims"} <= found.names


@pytest.mark.parametrize("deadline", [None, DEADLINE * MS])
def test_no_interleaving_loses_a_held_job(scratch: redis.Redis, known: Known, deadline: int | None) -> None:
    life = JobLife(Server(scratch, known=known), deadline, held=True)
    found = explore(Server(scratch, known=known), life, MOST_STATES)
    print(found)
    assert {"released", "a claims", "reconcile", "cancel"} <= found.names
    assert life.ends >= {"succeeded", "cancelled"}


MUTATIONS_OF_HELD = [
    ("queues/release_deferred", "    leave_lists(job)\n", ""),
    ("queues/release_deferred", "    add_pending(id, job.priority, job.lane)\n", ""),
    ("queues/release_deferred", "    add_in_flight(id, job.priority, job.owner, job.lane)\n", ""),
    ("lib/queues", "  if redis.call('ZREM', deferred .. ':' .. of, job.id) == 1 then", "  if false then"),
    ("lib/queues", "  if redis.call('HINCRBY', counts, of, -1) <= 0 then", "  if false then"),
]


@pytest.mark.parametrize(("script", "old", "new"), MUTATIONS_OF_HELD)
def test_a_fault_with_held_jobs_is_found_out(
    scratch: redis.Redis, known: Known, script: str, old: str, new: str
) -> None:
    server = Server(scratch, {script: (old, new)}, known)
    with pytest.raises(Broken) as caught:
        explore(server, JobLife(server, held=True), MOST_STATES)
    print(script, repr(new), caught.value)


MUTATIONS_OF_MODELS = [
    ("jobs/claim", "    requeue(job, job.attempts)\n", ""),
    ("jobs/claim", "model ~= own", "model == ''"),
    ("lib/queues", "  remove_in_flight(job)\n  job.lane = model_queue", "  job.lane = model_queue"),
    (
        "lib/queues",
        "  if job.lane ~= '' then redis.call('ZREM', queue_key('pending', job.priority, ''), job.id) end",
        "",
    ),
]


@pytest.mark.parametrize(("script", "old", "new"), MUTATIONS_OF_MODELS)
def test_a_fault_with_models_is_found_out(
    scratch: redis.Redis, known: Known, script: str, old: str, new: str
) -> None:
    server = Server(scratch, {script: (old, new)}, known)
    with pytest.raises(Broken) as caught:
        explore(server, JobLife(server, model=MODEL, serve=(MODEL, "other")), MOST_STATES)
    print(script, repr(new), caught.value)


MUTATIONS = [
    (
        "lib/job_states",
        "  resize(P .. 'job:' .. job.id, job.owner, #result",
        "  count_bytes(job.owner, #result",
    ),
    ("lib/outbox", "  count_bytes(owner, bytes)\n", ""),
    ("jobs/finish", " or job.fence ~= fencing_token then", " then"),
    ("jobs/finish", "if job.status ~= 'running' then return 0 end", ""),
    ("jobs/finish", "if job.written_fence == fencing_token then return 1 end", ""),
    ("jobs/heartbeat", " or job.fence ~= tonumber(ARGV[i + 1]) then", " then"),
    ("jobs/claim", "if TERMINAL[job.status] then return { 'done' } end", ""),
    ("jobs/claim", " and job.lease_until > NOW then", " and false then"),
    ("jobs/claim", "job.fence = job.fence + 1", "job.fence = job.fence"),
    ("jobs/claim", "if job.uncounted == '' then", "if true then"),
    ("jobs/start_isolated", " or job.fence ~= tonumber(ARGV[2]) then", " then"),
    ("jobs/start_isolated", "int(job.attempts + 1)", "int(job.attempts)"),
    ("jobs/requeue", " or job.fence ~= tonumber(ARGV[2]) then", " then"),
    ("queues/reconcile", "requeue(job, job.attempts)", "requeue(job, job.attempts - 1)"),
    ("queues/reconcile", "    to_send(job)\n    resent", "    resent"),
    ("jobs/cancel", "cancel(job, tonumber(ARGV[2]))", "close(job, 'cancelled', '', '', tonumber(ARGV[2]))"),
]


@pytest.mark.parametrize(("script", "old", "new"), MUTATIONS)
def test_a_script_with_a_fault_is_found_out(
    scratch: redis.Redis, known: Known, script: str, old: str, new: str
) -> None:
    server = Server(scratch, {script: (old, new)}, known)
    with pytest.raises(Broken) as caught:
        explore(server, JobLife(server), MOST_STATES)
    print(script, repr(new), caught.value)


MUTATIONS_OF_DEADLINES = [
    (
        "queues/reconcile",
        "if job.status == 'queued' then\n    close(job, 'expired'",
        "if false then\n    close(job, 'expired'",
    ),
    ("lib/job_states", "elseif job.deadline and job.deadline <= NOW then", "elseif false then"),
    (
        "lib/job_states",
        "  if job.deadline then redis.call('ZADD', P .. 'deadlines', int(job.deadline), job.id) end\n",
        "",
    ),
]


@pytest.mark.parametrize(("script", "old", "new"), MUTATIONS_OF_DEADLINES)
def test_a_fault_with_deadlines_is_found_out(
    scratch: redis.Redis, known: Known, script: str, old: str, new: str
) -> None:
    server = Server(scratch, {script: (old, new)}, known)
    with pytest.raises(Broken) as caught:
        explore(server, JobLife(server, DEADLINE * MS), MOST_STATES)
    print(script, repr(new), caught.value)
