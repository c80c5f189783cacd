"""The steps of a batch of two lines, and what must hold after each.

Whoever holds the first line's job may end it, hand it back or be lost, and come back late; the second one's
may end it or be lost. One io worker still reads the file that the other has read long ago. When the batch has
ended, its owner may delete it. As with one job, until there is no new state.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from typing import Any

from tasks.store.scripts import Argument, pairs
from tests.tasks.helpers.batch_state import BATCH, JOBS, LEADERS, OWNER, Leader, State
from tests.tasks.helpers.explorer import (
    CLOCK,
    LIST,
    MS,
    NEVER,
    PREFIX,
    TERMINAL,
    TTL,
    Keys,
    Model,
    Server,
    Step,
)

CAP = 9
RECONCILE = {
    "max_attempts": CAP,
    "resend_after_ms": NEVER,
    "ttl_ms": TTL,
    "lease_ms": MS,
    "gap_ms": NEVER,
    "limit": 200,
    "queues": [("bulk", "", PREFIX + LIST)],
}
CODE = "c"
HOOK = json.dumps({"url": "http://x/", "to": "x:80", "events": ["batch.completed", "batch.cancelled"]})


def validated(token: str, chunks: int, lines: int, codes: Mapping[str, int] | None = None) -> Argument:
    return {
        "token": token,
        "id": BATCH,
        "chunks": chunks,
        "lines": lines,
        "invalid": sum((codes or {}).values()),
        "model": "",
        "codes": codes or {},
    }


def finish(job: str, fencing_token: int, status: str) -> Argument:
    return {
        "id": job,
        "fencing_token": fencing_token,
        "status": status,
        "model": "",
        "ttl_ms": TTL,
        "tokens": 0,
    }


class BatchLife(Model[State]):
    """From when its file is read: what comes before has no counters that jobs change."""

    def __init__(self, server: Server) -> None:
        created = {
            "id": BATCH,
            "expires_in_ms": 86400 * MS,
            "idempotency_key": "",
            "body_hash": "",
            "idempotency_ttl_ms": 0,
            "input_file_id": "file",
            "owner": OWNER,
            "max_files": 1,
            "max_files_bytes": 1,
            "max_stored_bytes": 10**9,
        }
        keys: Keys = {f"string {CLOCK}": "1000", "hash file:file": {"id": "file"}}
        for name, arguments in (
            ("batches/create", (created, "metadata", "{}", "webhook", HOOK)),
            ("leader/lead", ("x", 64, "{}", 4, "id")),
            ("batches/validated", (validated("x", 1, 2), "[]")),
        ):
            assert isinstance(arguments, tuple)
            [(_, keys)] = server.run([(keys, name, arguments)])
        self._first = State(keys)

    def start(self) -> State:
        return self._first

    def keys(self, state: State) -> Keys:
        return state.keys

    def ended(self, state: State) -> bool:
        return not state.batch or state.batch["status"] in ("completed", "cancelled")

    def steps(self, state: State) -> list[Step[State]]:
        end = (BATCH, "cancelled", "")
        steps = [
            Step("time passes", lambda *_: _later(state)),
            Step("cancel", lambda _, keys: state._replace(keys=keys), "batches/stop", end, own=False),
        ]
        if self.ended(state):
            deleted = lambda _, keys: state._replace(keys=keys)  # noqa: E731
            steps.append(Step("delete", deleted, "batches/delete", (BATCH, ""), own=False))
            done = lambda _, keys: state._replace(keys=keys)  # noqa: E731
            ready = (LEADERS[0], BATCH, 5, 9)
            read = (validated(LEADERS[0], 5, 9, {CODE: 3}), "[]")
            copied = ({"token": LEADERS[0], "id": BATCH, "bytes": 5, "max_files": 9, "max_files_bytes": 9},)
            late_ones: tuple[tuple[str, tuple[Argument, ...]], ...] = (
                ("batches/chunks_ready", ready),
                ("batches/count_copy", copied),
                ("batches/validated", read),
            )
            for script, late in late_ones:
                steps.append(Step(f"{LEADERS[0]} is late with {script}", done, script, late, own=False))
        for number in range(len(JOBS)):
            steps += _of_job(state, number)
        for index in range(len(LEADERS)):
            steps += _of_leader(state, index)
        steps.append(
            Step("reconcile", lambda _, keys: _reconciled(state, keys), "queues/reconcile", (RECONCILE,))
        )
        return steps

    def essence(self, state: State) -> Hashable:
        """A job's end is like any other: all are counted, and all are collected."""
        keys, batch = state.keys, state.batch
        now = int(keys[f"string {CLOCK}"]) * MS

        if not batch:
            return "deleted", keys["string led_by"], "string leader" in keys, state.leaders

        def of_job(job: str) -> Hashable:
            record = keys.get(f"hash job:{job}")
            if record is None or record["status"] in TERMINAL:
                return record is None
            lease = keys.get("zset leases", {}).get(job)
            return record["status"], bool(record.get("cancel_requested")), lease and int(lease) <= now

        return (
            tuple(batch[name] for name in ("status", "chunk", "place", "parts", "ending")),
            int(batch["completed"]) + int(batch["failed"]),
            bool(batch.get("finalizing_at")),
            tuple(map(of_job, JOBS)),
            tuple(keys.get(f"list batch:{BATCH}:ended", [])),
            "string leader" in keys,
            tuple(
                sorted(  # the two may change places
                    repr((keys["string led_by"] == token, leader))
                    for token, leader in zip(LEADERS, state.leaders, strict=True)
                )
            ),
            tuple(map(bool, state.held)),
            tuple(map(bool, state.stale)),
            state.parts,
        )

    def check(self, before: State, step: Step[State], answer: Any, after: State) -> None:
        batch, keys = after.batch, after.keys
        if not batch:
            assert not [name for name in keys if f" batch:{BATCH}" in name], "a part of its record stays"
            return
        assert "id" in batch, "half a record of a batch that was deleted"
        assert len(set(after.parts)) == len(after.parts), "a result was counted twice"
        sent = int(batch["place"]) if batch["chunk"] == "0" else len(JOBS)
        there = [job for job in JOBS[:sent] if after.status(job) is not None]
        live = [job for job in there if after.status(job) not in TERMINAL]
        ended = [job for job in there if job not in live]
        if self.ended(after):
            assert int(batch["completed"]) + int(batch["failed"]) == sent, "lines are missing in the end"
            assert len(after.parts) == sent, "results are missing in the end"
            assert after.batch == before.batch or not self.ended(before), "an ended batch has changed"
            assert keys.get("string hook_seq") == "1", "not one webhook was put into the outbox"
            return
        assert "string hook_seq" not in keys, "its webhook was put into the outbox too early"
        counted = int(batch["completed"]) + int(batch["failed"])
        assert counted == len(ended) + len(after.parts), "the counters disagree with the records"
        assert sorted(keys.get(f"set batch:{BATCH}:live", [])) == live, "the wrong jobs are live"
        assert sorted(keys.get(f"list batch:{BATCH}:ended", [])) == ended, "the wrong jobs have ended"
        stored = sum(int(record["stored"]) for name, record in keys.items() if "stored" in record)
        assert keys["hash stored_bytes"] == {OWNER: str(stored)}, "its owner's bytes are miscounted"
        assert keys.get("hash outstanding", {OWNER: "0"}) == {OWNER: str(len(live))}, (
            "the share is miscounted"
        )
        assert sorted((*there, *after.parts)) == list(JOBS[:sent]), "a line was lost"


def _later(state: State) -> State:
    """A lease runs out, and so does the lead of whoever is silent."""
    keys = {
        name: value
        for name, value in state.keys.items()
        if name not in ("string leader", "string bulk_room", "string interactive_room")
    }
    return state._replace(keys={**keys, f"string {CLOCK}": str(int(keys[f"string {CLOCK}"]) + 1)})


def _reconciled(state: State, keys: Keys) -> State:
    after = state._replace(keys=keys)
    for number, job in enumerate(JOBS):
        if state.status(job) == "running" and after.status(job) != "running":
            after = after.with_fences(number, 0, state.held[number])
    return after


def _of_job(state: State, number: int) -> list[Step[State]]:
    """A message of it may come at any time; its holder may be lost, and its end come late."""
    job, held, stale = JOBS[number], state.held[number], state.stale[number]

    def claimed(answer: Any, keys: Keys) -> State:
        after = state._replace(keys=keys)
        if answer[0] != "claimed":
            return after
        return after.with_fences(number, json.loads(answer[1])["fencing_token"], stale=held or stale)

    def wrote(_: Any, keys: Keys) -> State:
        return state._replace(keys=keys).with_fences(number, 0, stale)

    def wrote_late(answer: Any, keys: Keys) -> State:
        assert answer == 0, "a late end was taken"
        return state._replace(keys=keys).with_fences(number, held, 0)

    steps: list[Step[State]] = []
    status = state.status(job)
    if status in ("queued", "running") and not stale:
        token = f"t{int(state.keys[f'hash job:{job}']['fence']) + 1}"
        claim = {
            "id": job,
            "worker": "w",
            "claim_id": token,
            "lease_ms": MS,
            "max_attempts": CAP,
            "ttl_ms": TTL,
            "model": "",
        }
        steps.append(Step(f"{job} is claimed", claimed, "jobs/claim", (claim,)))
    if held:
        for how in ("succeeded", "failed") if number == 0 else ("succeeded",):
            steps.append(Step(f"{job} has {how}", wrote, "jobs/finish", (finish(job, held, how), "", "")))
        if number == 0:
            steps.append(Step(f"{job} is handed back", wrote, "jobs/requeue", (job, held, TTL), own=False))
    if stale:
        late = (finish(job, stale, "succeeded"), "", "")
        steps.append(Step(f"{job} ends late", wrote_late, "jobs/finish", late))
    return steps


def _of_leader(state: State, index: int) -> list[Step[State]]:
    token, me = LEADERS[index], state.leaders[index]

    def led(answer: Any, keys: Keys) -> State:
        after = state._replace(keys=keys)
        active = pairs(answer[1:])["active"] if answer[0] else []
        if not active:
            return after.with_leader(index, Leader())
        [[fields, live, uncollected]] = active
        chunk, place, ending = json.loads(fields)
        return after.with_leader(index, Leader.seeing(int(chunk), int(place), ending, live + uncollected))

    def read(answer: Any, keys: Keys) -> State:
        after = state._replace(keys=keys)
        if answer[0] == "lost" or len(answer) == 2:
            return after.with_leader(index, Leader())
        part = int(answer[1]), tuple(job[0] for job in answer[2:])
        return after.with_leader(index, Leader(part=part))

    def counted(answer: Any, keys: Keys) -> State:
        assert me.part is not None
        after = state._replace(keys=keys).with_leader(index, Leader())
        return after._replace(parts=(*state.parts, *me.part[1])) if answer == "ok" else after

    if me.part is not None:
        number, jobs = me.part
        done = {
            "token": token,
            "id": BATCH,
            "number": number,
            "name": f"{token}{number}",
            "taken": len(jobs),
            "input_tokens": 1,
            "cached_tokens": 0,
            "output_tokens": 1,
            "codes": {},
            "cut": 0,
        }
        counts = Step(f"{token} counts the part", counted, "batches/segment_stored", (done,))
        killed = Step(f"{token} is killed", lambda *_: state.with_leader(index, Leader()), own=False)
        return [counts, _unheard(counts, index, me), killed]
    lead = (token, 64, "{}", 4, "chunk", "place", "ending")
    steps = [
        Step(f"{token} leads", led, "leader/lead", lead),
        Step(f"{token} writes a part", read, "batches/next_results", (token, BATCH, 1)),
    ]
    if me.todo is not None:
        for step in _of_todo(state, index, *me.todo):
            steps += [step, _unheard(step, index, me)]
    return steps


def _unheard(step: Step[State], index: int, me: Leader) -> Step[State]:
    """Its answer is lost, so that its caller goes on where it was, and may do it again."""

    def then(answer: Any, keys: Keys) -> State:
        return step.then(answer, keys).with_leader(index, me)

    return step._replace(name=f"{step.name}, its answer was lost", then=then, own=False)


def _of_todo(state: State, index: int, what: str, number: int) -> list[Step[State]]:
    """What a leader does by what it saw, which may be long ago."""
    token, me = LEADERS[index], state.leaders[index]

    def done(_: Any, keys: Keys) -> State:
        return state._replace(keys=keys).with_leader(index, Leader())

    def finalised(answer: Any, keys: Keys) -> State:
        after = me._replace(todo=("finish", number)) if answer == "ok" else Leader()
        return state._replace(keys=keys).with_leader(index, after)

    if what == "send":
        after = (1, 0) if number + 1 == len(JOBS) else (0, number + 1)
        line = {
            "job_id": JOBS[number],
            "number": number + 1,
            "custom_id": f"id-{number}",
            "model": "",
            "preview": "",
            "max_tokens": 0,
        }
        send = {
            "token": token,
            "id": BATCH,
            "chunk": 0,
            "offset": number,
            "next_chunk": after[0],
            "next_offset": after[1],
            "model_queue": "",
            "lines": [line],
        }
        return [Step(f"{token} sends a line", done, "batches/enqueue_lines", (send, "{}"))]
    if what == "finalise":
        return [Step(f"{token} finalises", finalised, "batches/finalizing", (token, BATCH))]
    if what == "finish":
        return [Step(f"{token} ends it", done, "batches/finish", (token, BATCH, TTL, me.how))]
    return [
        Step(f"{token} cancels {job}", done, "jobs/cancel", (job, TTL, ""))
        for job in JOBS
        if state.status(job) in ("queued", "running")
    ]
