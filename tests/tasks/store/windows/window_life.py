"""The steps of a window's life, and what must hold after each.

All that two workers, the reconciler and a client may do, also late, twice or never, until no new state is
found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from typing import Any

from tasks.store.scripts import Argument
from tests.tasks.helpers.batch_scripts import BATCH, creating, sending
from tests.tasks.helpers.explorer import CLOCK, MS, Keys, Model, Server, Step, ids_sent_by, missed
from tests.tasks.store.windows.window_checks import (
    check_claim,
    check_holder,
    check_missed,
    check_over,
    check_reconciled,
    check_store,
)
from tests.tasks.store.windows.window_state import (
    BEGAN,
    LEADER,
    LEASE,
    OLD,
    SET_ASIDE,
    TOOK,
    WORKERS,
    State,
    View,
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
    lost, and the reconciler sends them again; else there is one of each window at any time, and nothing
    depends on how long one waits. ends: how lines have ended.
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
        self._server, self._workers = server, workers
        self._count, self._cap, self._splits, self._resends = count, cap, splits, resends
        self._send: tuple[Argument, ...] = (
            sending(LEADER, 0),
            "".join(line(number + 1) for number in range(count)),
        )
        keys: Keys = {f"string {CLOCK}": str(BEGAN), "hash file:file": {"id": "file"}}
        for name, arguments in (
            ("batches/create", (creating(expires * MS),)),
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
        return not state.view.windows

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
            moved = {**keys, f"string {CLOCK}": str(state.view.now + 1)}
            return state._replace(keys=self._server.interned(moved))

        def lost(after: State) -> State:
            still = {window.id for window in after.view.windows if window.running}
            for window in state.view.windows:
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
            *missed(state.keys, WORKERS, after),
        ]
        if self._resends:
            name = "reconcile, messages lost"
            steps.append(Step(name, unheard, "queues/reconcile", reconcile, own=False))
        if not state.view.batch["ending"]:
            steps.append(Step("cancel", after, "batches/stop", (BATCH, "cancelled", ""), own=False))
        for window in state.view.windows:
            if self._resends and window.id not in state.messages:
                again = state.with_message(window.id)
                name = f"message of {window.id} comes again"
                steps.append(Step(name, _always(again), own=False))
            steps.append(Step(f"{window.id} is ended", after, "windows/end_queued", (window.id,), own=False))
        return steps

    def _of_worker(self, state: State, index: int) -> list[Step[State]]:
        worker, name = state.workers[index], WORKERS[index]
        if not worker.window:
            found = dict.fromkeys(state.messages if self._resends else state.view.by_id)
            return [
                Step(f"{name} takes {window}", _always(self._taken(state, index, window))) for window in found
            ]
        idle = state.with_worker(index, Worker())
        steps = [Step(f"{name} is killed", _always(idle), own=False)]
        if not worker.fence or (worker.group == 0 and worker.unheard is None):
            claim = {
                "id": worker.window,
                "worker": name,
                "holder": name,
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
            "running_lines": 0,
            "running_tokens": 0,
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
        messages = [each for each in state.messages if each != window]
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
        view = state.view
        if view.essence is None or view.essence[0] is not self:
            view.essence = self, self._essence_of_store(view, state.keys)
        found = view.by_id

        def of_worker(worker: Worker) -> Hashable:
            window = found.get(worker.window)
            if not worker.fence:
                taken = window is not None and window.fields["claim_token"] == worker.token
                return worker.window and worker.window in found, worker.window if window else "", taken
            if window is None or not window.running or window.of("fence") != worker.fence:
                return "stale"
            unheard = worker.unheard and (worker.unheard, window.of("group") - worker.group)
            return worker.window, worker.numbers, worker.opened, worker.ended, bool(worker.group), unheard

        workers = tuple(map(of_worker, state.workers))
        return (
            view.essence[1],
            tuple(each for each in state.messages if each in found) if self._resends else None,
            min(workers, workers[::-1], key=repr),  # the two may change places
            tuple(state.entered[number - 1] for number in view.live),
        )

    def _essence_of_store(self, view: View, keys: Keys) -> Hashable:
        now, leases = view.now, keys.get("zset window_leases", {})

        def ago(ms: str | int | None) -> int | None:
            return None if ms is None else max(-OLD, int(ms) // MS - now)

        def of(window: Window) -> Hashable:
            fields = window.fields
            held = int(leases[window.id]) > now * MS if window.id in leases else None
            return (
                *(window.id, window.running, window.numbers, fields["states"], fields["opened"]),
                *(fields["attempts"], held),
                ago(fields["enqueued_at"]) if self._resends and not window.running else None,
            )

        left = int(view.batch["expires_at"]) // MS - now
        return (
            tuple(map(of, view.windows)),
            view.batch["ending"],
            ago(keys.get("string claimed:windows")) if self._resends else None,
            max(0, left) if left < FAR else None,
        )

    def check(self, before: State, step: Step[State], answer: Any, after: State) -> None:
        view = after.view
        if view.checked is not self:
            check_store(view, after.keys, self._count, self._cap)
            self.ends |= {code for _, code in view.results}
            view.checked = self
        for window in view.windows:
            struck = {after.struck[number - 1] for number in window.live}
            assert struck == {window.of("attempts")}, (
                "an attempt was not counted, or one at a line that waited"
            )
        assert max(after.entered) <= self._cap, "in an engine more often than the cap allows"
        for number, code in view.results:
            if code == "worker_lost":
                assert after.struck[number - 1] == self._cap, "given up, and was not open at each loss"
        if step.script in ("windows/advance", "windows/release", "windows/split", "jobs/heartbeat"):
            check_holder(before, step, answer, after)
        if step.script == "windows/end_queued" and answer == 1:
            assert not any(w.running and step.name.startswith(w.id) for w in before.view.windows), (
                "ended as it ran"
            )
        if step.script == "windows/claim" and answer[0] == "claimed":
            check_claim(before, step)
        if step.script == "queues/expire_leases":
            check_missed(before.view, step, view)
        if step.script == "queues/reconcile":
            check_reconciled(before.view, view, after.keys, resends=self._resends)
        if before.view.over:
            check_over(before.view, view)


def _after(state: State, keys: Keys) -> State:
    """With the messages that a script has sent."""
    after = state._replace(keys=keys)
    for window in ids_sent_by(keys):
        after = after.with_message(window)
    return after


def _always(state: State) -> Then:
    return lambda *_: state
