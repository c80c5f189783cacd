"""Two who read the file of one batch: one who leads, and one who did, or will again."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.base.errors import LeadLost
from tasks.batches import ingest as ingest_module
from tasks.batches.ingest import Ingest
from tasks.batches.segments import read_chunk
from tasks.files.local import LocalStore
from tasks.files.records import object_name
from tasks.records.batch import Batch, Ending
from tasks.records.window import NewWindow
from tasks.store.windows import WindowStore
from tests.tasks.helpers.batches import ROOM
from tests.tasks.helpers.io_workers import System

BAD, GOOD = 5, 20


@pytest.fixture(autouse=True)
def always_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every line whether the batch goes on."""
    monkeypatch.setattr(ingest_module, "REPORT_S", 0.0)


class Readers:
    """Those of one batch, by their tokens, step by step."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.batch = system.create(GOOD, bad=BAD)
        self._files = LocalStore(Path(system.settings.files))
        self._runs: dict[str, Iterator[None]] = {}

    def leads(self, token: str) -> Iterator[None]:
        """The reading of this one, which leads from now on."""
        self.system.falls_silent()
        assert self.system.batches.lead(token, ROOM) is not None
        if token not in self._runs:
            ingest = Ingest(self._files, self.system.batches, self.system.settings, token)
            self._runs[token] = ingest.run(self.batch.id)
        return self._runs[token]

    def sends_the_first_line(self, token: str) -> None:
        batch = self.system.batches.get(self.batch.id)
        lines = read_chunk(self._files, batch.id, 0)
        windows = WindowStore(self.system.store.db)
        assert windows.send(token, batch, (1, 0), [NewWindow("", lines)])

    def ended(self) -> tuple[Batch, list[str | None]]:
        """The batch, and the custom ids of its lines without an answer."""
        io = self.system.io()
        self.system.falls_silent()
        io.until(lambda: self.system.is_ended(self.batch))
        done = self.system.batches.get(self.batch.id)
        if done.error_file_id is None:
            return done, []
        text = Path(self.system.settings.files, object_name(done.error_file_id)).read_text()
        return done, [json.loads(entry)["custom_id"] for entry in text.splitlines()]


@pytest.fixture
def readers(system: System) -> Readers:
    return Readers(system)


def steps(run: Iterator[None], count: int) -> None:
    for _ in range(count):
        next(run)


BEFORE_READING = BAD + GOOD  # steps in which it looks whether the file is of any use
READ = BEFORE_READING + BAD + GOOD


def test_refused_lines_of_one_who_was_replaced_are_in_no_file(readers: Readers) -> None:
    """It was about to end; who came after it has read less when the batch is cancelled."""
    first = readers.leads("first")
    steps(first, READ + 1)
    second = readers.leads("second")
    steps(second, BEFORE_READING + 3)
    readers.system.batches.stop(readers.batch.id, Ending.CANCELLED)
    deque(second, maxlen=0)
    with pytest.raises(LeadLost):
        deque(first, maxlen=0)
    done, without_answer = readers.ended()
    assert (done.total, done.failed) == (3, 2)
    assert without_answer == ["id-0", None, None]


def test_a_line_is_counted_that_another_reader_sent(readers: Readers) -> None:
    """One begins to read before another has sent the first line, and leads again when that is cancelled."""
    second = readers.leads("second")
    steps(second, 1)
    first = readers.leads("first")
    while not readers.system.batches.get(readers.batch.id).chunks:
        next(first)
    readers.sends_the_first_line("first")
    readers.system.answer(readers.batch, 1)
    readers.leads("second")
    readers.system.batches.stop(readers.batch.id, Ending.CANCELLED)
    deque(second, maxlen=0)
    done, without_answer = readers.ended()
    assert (done.total, done.completed, done.failed) == (1, 1, 0)
    assert without_answer == []
