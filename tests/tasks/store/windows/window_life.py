"""The steps of a window's life, and what must hold after each.

All that two workers, the reconciler and a client may do, also late, twice or never, until no new state is
found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from typing import Any

from tasks.store.scripts import Argument
from tests.tasks.helpers.explorer import CLOCK, MS, Keys, Model, Server, Step, ids_sent_by
from tests.tasks.store.windows.window_checks import check_counters, check_over, check_window
from tests.tasks.store.windows.window_state import (
    BATCH,
    BEGAN,
    LEADER,
    LEASE,
    OLD,
    OWNER,
    RESEND,
    SET_ASIDE,
    TOOK,
    WORKERS,
    State,
    Window,
    Worker,
    entry,
    line,
    reconciling,
)

Then = Callable[[Any, Keys], State]
FAR = 100  # ticks: an end of the batch that is not explored


class WindowLife(Model[State]):
    """One window of `count` lines of an API key, until all have ended. cap: of attempts.

    expires: ticks from the beginning. splits: workers give lines that wait to others. resends: messages get
    lost, and the reconciler sends them again; else they come again by themselves, and nothing depends on how
    long one waits. ends: how lines have ended.
    """

    def __init__(
        self,
        server: Server,
        count: int,
        cap: int,
        expires: int = 10**6,
        *,
        splits: bool = False,
        resends: bool = True,
        workers: int = len(WORKERS),
    ) -> None:
        self._workers = workers
        self._count, self._cap, self._splits, self._resends = count, cap, splits, resends
        created = {
            "id": BATCH,
            "expires_in_ms": expires * MS,
            "idempotency_key": "",
            "body_hash": "",
            "idempotency_ttl_ms": 0,
            "input_file_id": "file",
            "owner": OWNER,
            "max_files": 1,
            "max_files_bytes": 1,
            "max_stored_bytes": 10**9,
        }
        self._send: tuple[Argument, ...] = (
            {
                "token": LEADER,
                "id": BATCH,
                "chunk": 0,
                "offset": 0,
                "next_chunk": 1,
                "next_offset": 0,
                "model_queue": "",
                "models": [""],
            },
            "".join(line(number + 1) for number in range(count)),
        )
        keys: Keys = {f"string {CLOCK}": str(BEGAN), "hash file:file": {"id": "file"}}
        for name, arguments in (
            ("batches/create", (created,)),
            ("leader/lead", (LEADER, 64, "{}", 4, "id")),
            ("windows/send", self._send),
        ):
            [(_, keys)] = server.run([(keys, name, arguments)])
        zeros = (0,) * count
        self._first = State(keys, ids_sent_by(keys), zeros, zeros)
        self.ends: set[str | None] = set()

    def start(self) -> State:
        return self._first

    def keys(self, state: State) -> Keys:
        return state.keys

    def ended(self, state: State) -> bool:
        return not state.windows

    def steps(self, state: State) -> list[Step[State]]:
        if self.ended(state) and all(not worker.window for worker in state.workers):
            return []
        return [
            *self._system(state),
            *(step for index in range(self._workers) for step in self._of_worker(state, index)),
        ]

    def _system(self, state: State) -> list[Step[State]]:
        reconcile = (reconciling(self._cap, self._resends),)

        def later(_: Any, keys: Keys) -> State:
            return state._replace(keys={**keys, f"string {CLOCK}": str(state.now + 1)})

        def lost(after: State) -> State:
            still = {window.id for window in after.windows if window.running}
            for window in state.windows:
                if window.running and window.id not in still:
                    after = after.with_counts("struck", window.open, 1)
            return after

        def reconciled(_: Any, keys: Keys) -> State:
            return lost(_after(state, keys))

        def unheard(_: Any, keys: Keys) -> State:
            return lost(state._replace(keys=keys))

        def after(_: Any, keys: Keys) -> State:
            return _after(state, keys)

        steps = [
            Step("time passes", later),
            Step("reconcile", reconciled, "queues/reconcile", reconcile),
            Step("sent again", after, "windows/send", self._send, own=False),
        ]
        if self._resends:
            name = "reconcile, messages lost"
            steps.append(Step(name, unheard, "queues/reconcile", reconcile, own=False))
        if not state.batch["ending"]:
            steps.append(Step("cancel", after, "batches/stop", (BATCH, "cancelled", ""), own=False))
        for window in state.windows:
            if window.id not in state.messages:
                again = state.with_message(window.id)
                name = f"message of {window.id} comes again"
                steps.append(Step(name, _always(again), own=not self._resends))
            steps.append(Step(f"{window.id} is ended", after, "windows/end_queued", (window.id,), own=False))
        return steps

    def _of_worker(self, state: State, index: int) -> list[Step[State]]:
        worker, name = state.workers[index], WORKERS[index]
        if not worker.window:
            return [
                Step(f"{name} takes {window}", _always(self._taken(state, index, window)))
                for window in dict.fromkeys(state.messages)
            ]
        idle = state.with_worker(index, Worker())
        steps = [Step(f"{name} is killed", _always(idle), own=False)]
        if not worker.fence or (worker.group == 0 and worker.unheard is None):
            claim = {
                "id": worker.window,
                "worker": name,
                "claim_id": worker.token,
                "lease_ms": LEASE * MS,
                "max_attempts": self._cap,
                "model": "",
            }
            own = not worker.fence
            claimed = Step(f"{name} claims", self._claimed(state, index), "windows/claim", (claim,), own=own)
            steps.append(claimed)
        return steps + (self._of_holder(state, index) if worker.fence else [])

    def _of_holder(self, state: State, index: int) -> list[Step[State]]:
        worker, name = state.workers[index], WORKERS[index]
        its = (worker.window, worker.fence)

        def beaten(answer: Any, keys: Keys) -> State:
            after = _after(state, keys)
            return after.with_worker(index, Worker() if answer == ["lost"] else worker)

        def handed_back(answer: Any, keys: Keys) -> State:
            after = _after(state, keys).with_worker(index, Worker())
            inside = tuple(n for n in worker.numbers[: worker.opened] if n not in worker.ended)
            return after.with_counts("entered", inside, -1) if answer == 1 else after

        def parted(_: Any, keys: Keys) -> State:
            return _after(state, keys)

        steps = [
            Step(f"{name} beats", beaten, "jobs/heartbeat", (LEASE * MS, *its)),
            Step(f"{name} hands back", handed_back, "windows/release", its, own=False),
        ]
        if self._splits:
            steps.append(Step(f"{name} splits", parted, "windows/split", (*its, 0), own=False))
        inside = [n for n in range(worker.opened) if worker.numbers[n] not in worker.ended]
        groups: dict[str, tuple[tuple[int, ...], int]] = {}
        if worker.unheard is not None:
            groups["asks again"] = worker.unheard
        else:
            if worker.opened < len(worker.numbers):
                groups["opens"] = (), worker.opened + 1
            for n in inside:
                groups[f"writes {n}"] = (n,), worker.opened
            if inside and worker.opened < len(worker.numbers):
                groups["writes and opens"] = tuple(inside), len(worker.numbers)
        for what, group in groups.items():
            told = self._advance(worker, *group)
            heard = self._advanced(state, index, group)
            steps.append(Step(f"{name} {what}", heard, "windows/advance", told))
            if worker.unheard is None:
                missed = self._missed(state, index, group)
                steps.append(
                    Step(f"{name} {what}, its answer was lost", missed, "windows/advance", told, own=False)
                )
        return steps

    def _advance(self, worker: Worker, ends: tuple[int, ...], open_to: int) -> tuple[Argument, ...]:
        arguments = {
            "id": worker.window,
            "fencing_token": worker.fence,
            "group": worker.group + 1,
            "open": open_to,
            "ends": ends,
            "statuses": {"succeeded": len(ends)} if ends else {},
            "codes": {},
            "cut": 0,
            "input_tokens": 0,
            "cached_tokens": 0,
            "output_tokens": TOOK * len(ends),
            "set_aside": SET_ASIDE * len(ends),
        }
        return arguments, *(entry(worker.numbers[n]) for n in ends)

    def _advanced(self, state: State, index: int, group: tuple[tuple[int, ...], int]) -> Then:
        worker = state.workers[index]

        def then(answer: Any, keys: Keys) -> State:
            after = _after(state, keys)
            if answer[0] != "ok" or answer[3] == 0:
                return after.with_worker(index, Worker())
            opened, count = answer[1], answer[2]
            entering = worker.numbers[worker.opened : opened]
            held = worker._replace(
                opened=opened,
                numbers=worker.numbers[:count],
                ended=(*worker.ended, *(worker.numbers[n] for n in group[0])),
                group=worker.group + 1,
                unheard=None,
            )
            return after.with_counts("entered", entering, 1).with_worker(index, held)

        return then

    def _missed(self, state: State, index: int, group: tuple[tuple[int, ...], int]) -> Then:
        return lambda _, keys: _after(state, keys).with_worker(
            index, state.workers[index]._replace(unheard=group)
        )

    def _taken(self, state: State, index: int, window: str) -> State:
        messages = list(state.messages)
        messages.remove(window)
        tokens = state.tokens + 1
        after = state._replace(messages=tuple(messages), tokens=tokens)
        return after.with_worker(index, Worker(window, f"t{tokens}"))

    def _claimed(self, state: State, index: int) -> Then:
        worker = state.workers[index]

        def then(answer: Any, keys: Keys) -> State:
            after = _after(state, keys)
            if answer[0] != "claimed":
                return after.with_worker(index, Worker())
            fence = json.loads(answer[1])["fencing_token"]
            numbers = tuple(int(text.partition("\t")[0]) for text in answer[2].splitlines())
            return after.with_worker(index, Worker(worker.window, worker.token, fence, numbers))

        return then

    # What may be told apart, and what must hold

    def essence(self, state: State) -> Hashable:
        """How a line has ended makes no difference to others; nor what a worker holds and has lost."""
        now, keys = state.now, state.keys

        def ago(ms: str | int | None) -> int | None:
            return None if ms is None else max(-OLD, int(ms) // MS - now)

        def of(window: Window) -> Hashable:
            fields, leases = window.fields, keys.get("zset window_leases", {})
            held = int(leases[window.id]) > now * MS if window.id in leases else None
            return (
                *(window.id, window.running, window.numbers, fields["states"], fields["opened"]),
                *(fields["attempts"], held),
                ago(fields["enqueued_at"]) if self._resends and not window.running else None,
            )

        found = {window.id: window for window in state.windows}

        def of_worker(worker: Worker) -> Hashable:
            window = found.get(worker.window)
            if not worker.fence:
                taken = window is not None and window.fields["claim_token"] == worker.token
                return worker.window and worker.window in found, worker.window if window else "", taken
            if window is None or not window.running or window.of("fence") != worker.fence:
                return "stale"
            unheard = worker.unheard and (worker.unheard, window.of("group") - worker.group)
            return worker.window, worker.numbers, worker.opened, worker.ended, bool(worker.group), unheard

        left = int(state.batch["expires_at"]) // MS - now
        live = {number for window in found.values() for number in window.live}
        return (
            tuple(map(of, found.values())),
            tuple(each for each in state.messages if each in found),
            tuple(sorted(map(repr, map(of_worker, state.workers)))),  # the two may change places
            tuple(state.entered[number - 1] for number in sorted(live)),
            state.batch["ending"],
            ago(keys.get("string claimed:windows")) if self._resends else None,
            max(0, left) if left < FAR else None,
        )

    def check(self, before: State, step: Step[State], answer: Any, after: State) -> None:
        windows, results, keys = after.windows, after.results, after.keys
        self.ends |= {code for _, code in results}
        live = [number for window in windows for number in window.live]
        assert sorted((*live, *(n for n, _ in results))) == list(range(1, self._count + 1)), (
            "a line is lost, or there twice"
        )
        check_counters(after, len(live))
        for window in windows:
            check_window(window, keys, self._cap)
            struck = {after.struck[number - 1] for number in window.live}
            assert struck == {window.of("attempts")}, (
                "an attempt was not counted, or one at a line that waited"
            )
        names = {window.id for window in windows} | ({"results"} if results else set())
        assert set(keys.get(f"set batch:{BATCH}:live", [])) == names, "the wrong windows are live"
        assert max(after.entered) <= self._cap, "in an engine more often than the cap allows"
        for number, code in results:
            if code == "worker_lost":
                assert after.struck[number - 1] == self._cap, "given up, and was not open at each loss"
            if code == "batch_cancelled":
                assert after.batch["ending"] == "cancelled", "cancelled by nobody"
            if code == "batch_expired":
                assert int(after.batch["expires_at"]) <= after.now * MS, "expired too early"
        if step.script in ("windows/advance", "windows/release", "windows/split", "jobs/heartbeat"):
            self._check_holder(before, step, answer, after)
        if step.script == "windows/end_queued" and answer == 1:
            assert not any(w.running and step.name.startswith(w.id) for w in before.windows), (
                "ended as it ran"
            )
        if step.script == "windows/claim" and answer[0] == "claimed":
            self._check_claim(before, step)
        if step.script == "queues/reconcile":
            overdue = [n for n, at in keys.get("zset window_leases", {}).items() if int(at) <= after.now * MS]
            assert not overdue, "a lease that ran out is kept"
            for window in windows:
                old = (after.now - RESEND) * MS
                waits = self._resends and not window.running
                assert not waits or window.of("enqueued_at") > old, "its message is lost for ever"
        if before.over:
            check_over(before, after)

    def _check_holder(self, before: State, step: Step[State], answer: Any, after: State) -> None:
        worker = before.workers[WORKERS.index(step.name[0])]
        window = next((w for w in before.windows if w.id == worker.window), None)
        current = window is not None and window.running and window.of("fence") == worker.fence
        if not current:
            assert answer in (["lost"], ["gone"], 0, ""), f"{answer} for a claim that is not current"
            assert after.keys == before.keys, "changed by one that has lost it"
        elif step.script in ("windows/advance", "jobs/heartbeat"):
            assert answer[0] not in ("lost", "gone"), f"{answer} for a claim that is current"

    def _check_claim(self, before: State, step: Step[State]) -> None:
        worker = before.workers[WORKERS.index(step.name[0])]
        window = next(w for w in before.windows if w.id == worker.window)
        if window.running:
            assert window.fields["claim_token"] == worker.token, "taken from its holder"
        else:
            assert not before.over, "given to a worker after its batch has ended"


def _after(state: State, keys: Keys) -> State:
    """With the messages that a script has sent."""
    after = state._replace(keys=keys)
    for window in ids_sent_by(keys):
        after = after.with_message(window)
    return after


def _always(state: State) -> Then:
    return lambda *_: state
