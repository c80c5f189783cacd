"""Two io workers collect the results of a batch that was read, and write its end."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from tests.tasks.batches.interleavings.batch_life import BatchLife, State
from tests.tasks.batches.interleavings.batch_state import (
    CHUNKS,
    IO_WORKERS,
    LINES,
    REFUSED,
    View,
    created,
    lines_in,
    number_of,
    segment,
    sends,
    validates,
)
from tests.tasks.helpers.batch_scripts import BATCH
from tests.tasks.helpers.explorer import TTL, Keys, Server, Step

AT_ONCE = 2  # results in a segment
STATUS = {"": "completed", "cancelled": "cancelled", "expired": "expired"}


class Found(NamedTuple):
    """Results that are not recorded yet. number: of their segment."""

    number: int
    entries: tuple[str, ...]

    @property
    def lines(self) -> tuple[int, ...]:
        return tuple(map(number_of, self.entries))


class End(NamedTuple):
    """Of the batch as it was read. lines: in the files that its writer makes; noted: it said so."""

    status: str
    lines: tuple[int, ...]
    noted: bool = False


class Memory(NamedTuple):
    found: Found | None = None
    end: End | None = None


Collecting = State[Memory]


class CollectingLife(BatchLife[Memory]):
    """Until the batch has ended, and nobody remembers anything of it."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        keys, name = created(server), IO_WORKERS[0]
        read = validates(
            name,
            chunks=len(CHUNKS),
            lines=LINES,
            refused=(REFUSED,),
        )
        for script, arguments in (("batches/validated", read), ("windows/send", sends(name, 0))):
            [(_, keys)] = server.run([(keys, script, arguments)])
        self._first = Collecting(keys, (Memory(), Memory()))
        self.ends: set[str] = set()

    def start(self) -> Collecting:
        return self._first

    def ended(self, state: Collecting) -> bool:
        return self.view(state).over and state.memories == (Memory(), Memory())

    def of_io_worker(self, state: Collecting, index: int) -> Iterator[Step[Collecting]]:
        name, memory = IO_WORKERS[index], state.memories[index]
        if memory != Memory():
            yield Step(f"{name} is killed", lambda *_: state.with_memory(index, Memory()), own=False)
        yield self._collects(state, index, memory)

        def failed(_: Any, keys: Keys) -> Collecting:
            return state._replace(keys=keys)

        if not self.view(state).over:
            told = name, BATCH, TTL, "failed", "errors", "[]"
            yield Step(f"{name} fails it", failed, "batches/finish", told, own=False)
        if (end := self._end(state, index, memory)) is not None:
            yield end

    def _collects(self, state: Collecting, index: int, memory: Memory) -> Step[Collecting]:
        name, found = IO_WORKERS[index], memory.found
        if found is None:

            def looked(answer: list[Any], keys: Keys) -> Collecting:
                after = state._replace(keys=keys)
                if answer[0] == "lost":
                    assert name != self.view(state).leader, "lost for one that leads"
                    return after
                assert name == self.view(state).leader, "results for one that does not lead"
                results = Found(int(answer[1]), tuple(answer[2:]))
                return after.with_memory(index, memory._replace(found=results)) if results.entries else after

            return Step(f"{name} looks", looked, "batches/next_results", (name, BATCH, AT_ONCE))

        def recorded(answer: str, keys: Keys) -> Collecting:
            assert answer == "lost" or not self.view(state).over, "recorded of one that has ended"
            return state._replace(keys=keys).with_memory(index, memory._replace(found=None))

        size = sum(map(len, found.entries))
        told = (
            name,
            BATCH,
            segment(str(found.number), name, found.lines),
            len(found.lines),
            size,
            hashlib.sha1(found.entries[-1].encode()).hexdigest(),
        )
        return Step(f"{name} records {found.lines}", recorded, "batches/segment_stored", told)

    def _end(self, state: Collecting, index: int, memory: Memory) -> Step[Collecting] | None:
        name, view, end = IO_WORKERS[index], self.view(state), memory.end
        if end is None:
            if view.over or view.leader != name or not view.settled or view.results:
                return None
            begun = memory._replace(end=End(STATUS[view.ending], (*view.collected, *view.unsent)))
            return Step(f"{name} begins to end it", lambda *_: state.with_memory(index, begun))

        def noted(answer: str, keys: Keys) -> Collecting:
            after = None if answer == "lost" else end._replace(noted=True)
            return state._replace(keys=keys).with_memory(index, memory._replace(end=after))

        if not end.noted:
            return Step(f"{name} notes its end", noted, "batches/finalizing", (name, BATCH))

        def written(_: Any, keys: Keys) -> Collecting:
            return state._replace(keys=keys).with_memory(index, memory._replace(end=None))

        content = ",".join(map(str, end.lines))
        told = name, BATCH, TTL, end.status, "output_file_id", content
        return Step(f"{name} ends it", written, "batches/finish", told)

    def check(self, before: Collecting, step: Step[Collecting], answer: Any, after: Collecting) -> None:
        super().check(before, step, answer, after)
        now = self.view(after)
        if now.over and not self.view(before).over:
            self._check_end(now)

    def _check_end(self, now: View) -> None:
        status, keys = now.fields["status"], now.keys
        self.ends.add(status)
        if not now.failed:
            late = status == STATUS[""]  # all lines had ended when it was cancelled
            assert late or status == STATUS[now.ending], "ended as another"
            lines = lines_in("-" + now.fields["output_file_id"])
            assert sorted(lines) == [*range(1, LINES + 1)], "a line is in no file, or there twice"
            assert keys["set batches:cleanup"] == [BATCH], "its files are left"
        left = [f"set batch:{BATCH}:live", f"list batch:{BATCH}:results", "set file_uses:file"]
        left += ["hash live_batches", "hash outstanding"]
        assert not keys.keys() & left, "something of it is left"

    def essence(self, state: Collecting) -> Hashable:
        """Who is called how makes no difference, nor how a line has ended."""
        view = self.view(state)

        def of(name: str, memory: Memory) -> Hashable:
            found = memory.found and (memory.found.number, memory.found.lines)
            return name != view.leader, found or (), memory.end or ()

        pairs = zip(IO_WORKERS, state.memories, strict=True)
        memories = tuple(sorted(map(repr, (of(*pair) for pair in pairs))))
        if view.over:
            return memories, view.fields["status"], view.of("parts"), "finalizing_at" in view.fields
        return (
            memories,
            view.of("chunk"),
            view.ending,
            view.fields["status"],
            tuple(view.windows.values()),
            view.results,
            view.of("parts"),
        )
