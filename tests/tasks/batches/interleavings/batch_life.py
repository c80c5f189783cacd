"""The steps that io workers, workers and clients take on a batch, and what must hold after each."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from tests.tasks.batches.interleavings.batch_state import (
    IO_WORKERS,
    View,
    answered,
    check_lines,
    check_stored,
    leads,
    sends,
)
from tests.tasks.helpers.batch_scripts import BATCH
from tests.tasks.helpers.explorer import Keys, Model, Server, Step, view_of

Memory = TypeVar("Memory", bound=Hashable)


class State(NamedTuple, Generic[Memory]):
    """memories: of each io worker."""

    keys: Keys
    memories: tuple[Memory, Memory]

    def with_memory(self, index: int, memory: Memory) -> State[Memory]:
        first, second = self.memories
        return self._replace(memories=(memory, second) if index == 0 else (first, memory))


class BatchLife(Model[State[Memory]]):
    """Until all lines of a batch have ended. Override start(), of_io_worker() and ended()."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def of_io_worker(self, state: State[Memory], index: int) -> Iterator[Step[State[Memory]]]:
        """What one does beside leading and sending."""
        raise NotImplementedError

    def view(self, state: State[Memory]) -> View:
        return view_of(state.keys, View)

    def keys(self, state: State[Memory]) -> Keys:
        return state.keys

    def steps(self, state: State[Memory]) -> list[Step[State[Memory]]]:
        if self.ended(state):
            return []
        return [
            *self._of_clients_and_workers(state),
            *(step for index in range(len(IO_WORKERS)) for step in self._of_leader(state, index)),
            *(step for index in range(len(IO_WORKERS)) for step in self.of_io_worker(state, index)),
        ]

    def _of_clients_and_workers(self, state: State[Memory]) -> Iterator[Step[State[Memory]]]:
        def after(_: Any, keys: Keys) -> State[Memory]:
            return state._replace(keys=keys)

        for how in ("cancelled", "expired"):
            yield Step(f"ends as {how}", after, "batches/stop", (BATCH, how, ""), own=False)
        for window in self.view(state).windows:
            yield Step(f"{window} is ended", after, "windows/end_queued", (window,))
            yield Step(f"{window} is answered", self._answered(state, window))

    def _answered(self, state: State[Memory], window: str) -> Callable[[Any, Keys], State[Memory]]:
        return lambda _, keys: state._replace(keys=answered(self.server, keys, window))

    def _of_leader(self, state: State[Memory], index: int) -> Iterator[Step[State[Memory]]]:
        name, view = IO_WORKERS[index], self.view(state)

        def after(_: Any, keys: Keys) -> State[Memory]:
            return state._replace(keys=keys)

        if view.leader != name:
            silent = {key: value for key, value in state.keys.items() if key != "string leader"}
            yield Step(f"{name} takes over", after, "leader/lead", leads(name), keys=silent)
            yield Step(f"{name} would lead", after, "leader/lead", leads(name), own=False)
        chunk = view.of("chunk")
        if chunk < view.of("chunks"):
            yield Step(f"{name} sends", after, "windows/send", sends(name, chunk))
        if chunk > 0:
            yield Step(f"{name} sends again", after, "windows/send", sends(name, chunk - 1), own=False)

    def check(
        self, before: State[Memory], step: Step[State[Memory]], answer: Any, after: State[Memory]
    ) -> None:
        was, now = self.view(before), self.view(after)
        if now is was or now.keys == was.keys:
            return
        if not now.failed:  # else what it had is forgotten
            check_lines(now)
        check_stored(now)
        assert not was.ending or now.ending == was.ending, "it has ended in two ways"
        assert not was.over or (now.fields, now.segments) == (was.fields, was.segments), "changed after it"
        if was.ending:
            assert now.of("chunk") == was.of("chunk"), "sent after its end"
        who = step.name.partition(" ")[0]
        if who in IO_WORKERS and who != was.leader and not step.name.endswith("takes over"):
            raise AssertionError("changed by one that does not lead")
