"""Two io workers read the file of one batch, at once or one after the other, while its lines are sent."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from tests.tasks.batches.interleavings.batch_life import BatchLife, State
from tests.tasks.batches.interleavings.batch_state import (
    CHUNKS,
    IO_WORKERS,
    LINES,
    REFUSED,
    created,
    validates,
)
from tests.tasks.helpers.batch_scripts import BATCH
from tests.tasks.helpers.explorer import Keys, Server, Step


class Reader(NamedTuple):
    """What one remembers who has read so many lines. chunks: that can be sent, as it heard of an ending."""

    lines: int
    ending: str = ""
    chunks: int = 0

    @property
    def refused(self) -> tuple[int, ...]:
        return (REFUSED,) if self.lines >= REFUSED else ()

    @property
    def ready(self) -> int:
        """Valid lines."""
        return self.lines - len(self.refused)

    @property
    def stops(self) -> bool:
        return bool(self.ending) and self.ready >= self.chunks


Reading = State[Reader | None]


class ReadingLife(BatchLife[Reader | None]):
    """Until the file is read, and each line that was sent has ended."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._first = Reading(created(server), (None, None))

    def start(self) -> Reading:
        return self._first

    def ended(self, state: Reading) -> bool:
        return self.view(state).settled and state.memories == (None, None)

    def of_io_worker(self, state: Reading, index: int) -> Iterator[Step[Reading]]:
        name, view, reader = IO_WORKERS[index], self.view(state), state.memories[index]
        if reader is None:
            if view.leader == name and not view.validated:
                begun = state.with_memory(index, Reader(0))
                yield Step(f"{name} begins to read", lambda *_: begun)
            return
        yield Step(f"{name} stops reading", lambda *_: state.with_memory(index, None), own=False)
        if not reader.ending:
            yield self._reports(state, index, reader, own=False)
        if reader.lines < LINES and not reader.stops:
            further = reader._replace(lines=reader.lines + 1)
            if further.lines in CHUNKS[0]:
                yield self._reports(state, index, further, own=True)
            else:
                yield Step(f"{name} reads line {further.lines}", lambda *_: state.with_memory(index, further))
            return
        chunks = 1 if reader.stops else len(CHUNKS)
        sendable = sum(map(len, CHUNKS[:chunks])) if reader.ready else 0
        read = validates(
            name,
            chunks=chunks if sendable else 0,
            lines=sendable + len(reader.refused),
            refused=reader.refused,
        )

        def done(_: Any, keys: Keys) -> Reading:
            return state._replace(keys=keys).with_memory(index, None)

        yield Step(f"{name} has read {reader.lines} lines", done, "batches/validated", read)

    def _reports(self, state: Reading, index: int, reader: Reader, *, own: bool) -> Step[Reading]:
        name = IO_WORKERS[index]

        def heard(answer: list[Any], keys: Keys) -> Reading:
            status, ending, chunks = answer
            after = state._replace(keys=keys)
            if status == "lost":
                return after.with_memory(index, None)
            return after.with_memory(
                index, reader._replace(ending=ending, chunks=int(chunks) if ending else 0)
            )

        told = name, BATCH, min(1, reader.ready), reader.lines
        return Step(f"{name} reports {reader.lines} lines", heard, "batches/chunks_ready", told, own=own)

    def essence(self, state: Reading) -> Hashable:
        """Who is called how makes no difference, nor in which of two ways a batch has ended, or a line."""
        view = self.view(state)
        readers = sorted(
            (name != view.leader, reader is not None, reader or ())
            for name, reader in zip(IO_WORKERS, state.memories, strict=True)
        )
        return (
            tuple(readers),
            view.validated and (view.of("total"), view.segments != ()),
            view.of("chunk"),
            view.of("chunks"),
            view.ending,
            tuple(view.windows.values()),
        )
