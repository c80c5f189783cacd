"""The steps of a job's life, and what must hold after each.

All that workers may do, also late, twice or never, in every order: not up to a depth, but until no new state
is found. The same scripts that production runs, on a real server; only the clock is a key that a step moves.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from functools import partial
from typing import Any

from tasks.store.scripts import Argument
from tests.tasks.helpers.explorer import CLOCK, MS, TERMINAL, TTL, Keys, Model, Server, Step, missed, sent_by
from tests.tasks.helpers.job_state import (
    BEGAN,
    CAP,
    HOLDING,
    HOOK,
    JOB,
    LEADER,
    LEADS,
    LEASE,
    MODEL,
    OLD,
    OTHER,
    OWNER,
    QUEUES,
    RECONCILE,
    RESERVED,
    SET_ASIDE,
    TOOK,
    WORKERS,
    State,
    Worker,
    beside_other,
    claim,
    finish,
    without_other,
)


class JobLife(Model[State]):
    """One bulk job of an API key, with a webhook: its owner's share, seat and tokens are counted too.

    deadline: ms, or None. model: that it asks for, not known when it was created, but by now. serve: what the
    workers have. ends: the statuses in which the job has been seen. held: it is an interactive one, held
    until a leader releases it, or another one ends.
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
            "waiter": "",
            "traceparent": "",
            "webhook": HOOK,
            "max_tokens": SET_ASIDE,
            "reserved_bytes": RESERVED,
            "idempotency_key": "",
            "max_queued": 1000,
            "max_stored_bytes": 10**9,
            "idempotency_ttl_ms": 0,
            "jobs": [{"id": JOB, "size": "", "prompt": ""}],
        }
        began = {f"string {CLOCK}": str(BEGAN), **(LEADS if held else {})}
        before = beside_other(began) if held else began
        [(_, keys)] = server.run([(before, "jobs/create", (create, "{}"))])
        assert len(sent_by(keys)) == (0 if held else 1)
        if held:
            keys = without_other(keys, began)
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

        def tick(_: Any, keys: Keys) -> State:
            return state._replace(keys={**keys, f"string {CLOCK}": str(state.now + 1)})

        def after(_: Any, keys: Keys) -> State:
            return self._after(state, keys)

        def unheard(_: Any, keys: Keys) -> State:
            return state._replace(keys=keys)

        def other_ended(_: Any, keys: Keys) -> State:
            return self._after(state, without_other(keys, state.keys), sent_by(keys))

        reconcile = ({**RECONCILE, "queues": QUEUES[self._priority]},)
        release = (LEADER, self._priority, OWNER, 1)
        of_leader = [
            Step("released", after, "queues/release_deferred", release),
            Step("released, message lost", unheard, "queues/release_deferred", release, own=False),
            Step(
                "another one ends",
                other_ended,
                "jobs/finish",
                (finish(1, "succeeded", OTHER), "", ""),
                own=False,
                keys=beside_other(state.keys) if self._held else None,
            ),
        ]
        return [
            *(of_leader if self._held else ()),
            Step("time passes", tick),
            Step("reconcile", after, "queues/reconcile", reconcile),
            Step("reconcile, message lost", unheard, "queues/reconcile", reconcile, own=False),
            Step("message comes again", lambda *_: state.with_messages(queued + 1), own=False),
            Step("cancel", after, "jobs/cancel", (JOB, TTL, ""), own=False),
            *missed(state.keys, [state.job["holder"]] if state.job["status"] == "running" else [], unheard),
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
            claiming, claimed = self._claim(index, worker), partial(self._claimed, state, index)
            steps.append(Step(f"{name} claims", claimed, "jobs/claim", claiming))
            if self._model:
                killed = Step(
                    f"{name} claims and is killed, message lost",
                    lambda _, keys: state._replace(keys=keys).idle(index),
                    "jobs/claim",
                    claiming,
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
        claiming = self._claim(index, worker)
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
                after = self._after(state, keys) if sent else state._replace(keys=keys)
                return after._replace(entered=state.entered - back).idle(index)

            return then

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
            Step(
                f"{name} claims again, its answer was lost",
                partial(self._claimed, state, index),
                "jobs/claim",
                claiming,
                own=False,
            ),
        ]

    def _claim(self, index: int, worker: Worker) -> tuple[Argument]:
        return (claim(WORKERS[index], worker.token, self._serve[index]),)

    def _after(self, state: State, keys: Keys, sent: tuple[str, ...] | None = None) -> State:
        """Of a script that may send a message. sent: of which the keys no longer say it."""
        after = state._replace(keys=keys)
        if sent is None:
            sent = sent_by(keys)
        if not sent:
            return after
        job = after.job
        assert job["status"] == "queued", "a message of a job that does not wait"
        of_model = f".{job['lane']}" if job.get("lane") else ""
        assert sent == (f"medusaq.{self._priority}{of_model}",), "not one message in the job's queue"
        return after.with_messages(len(state.queue) + 1)

    def _taken(self, state: State, index: int) -> State:
        after = state.with_messages(len(state.queue) - 1)
        after = after._replace(tokens=state.tokens + 1)
        return after.with_worker(index, stage="taken", token=f"t{after.tokens}")

    def _claimed(self, state: State, index: int, answer: Any, keys: Keys) -> State:
        after = self._after(state, keys)
        if answer[0] != "claimed":
            return after.idle(index)
        claimed = json.loads(answer[1])
        stage, fencing_token = (
            "waiting" if claimed["isolated"] else "running",
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
        script = None if step.keys else step.script  # else of another job
        if before.terminal:
            assert job == before.job, "an ended job has changed"
        if script in ("jobs/heartbeat", "jobs/start_isolated", "jobs/finish", "jobs/requeue"):
            self._check_token(before, step, answer)
        if script == "jobs/claim" and answer[0] == "claimed":
            serves = self._serve[WORKERS.index(step.name[0])]
            assert not serves or serves == self._model, "given to a worker of another model"
            holder = before.job["claim_token"] if before.job["status"] == "running" else None
            if holder != before.workers[WORKERS.index(step.name[0])].token:  # else its first answer was lost
                assert holder is None or int(before.job["lease_until"]) <= before.now * MS, (
                    "taken from one whose lease holds"
                )
                assert not before.overdue, "given to a worker after its deadline"
        if script == "jobs/finish" and answer == 1:
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
        if script == "queues/reconcile":
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
        if script == "queues/release_deferred" and len(answer) > 1:
            assert counted, "released, and takes no place"
        if step.name == "another one ends":
            assert not held, "what waits does not take the place of what has ended"
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
