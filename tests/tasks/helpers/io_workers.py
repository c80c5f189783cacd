"""Io workers in this process that lead round by round, and what clients and model workers do meanwhile."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import redis

from tasks.base.settings import Settings
from tasks.batches.leader import BatchLeader
from tasks.batches.store import BatchStore
from tasks.files.base import NewObject
from tasks.files.local import LocalStore
from tasks.files.manager import FileManager
from tasks.files.records import FileRecords, Purpose, object_name
from tasks.records.batch import Batch, NewBatch
from tasks.records.job import Status
from tasks.records.packed_line import parts
from tasks.records.window import Group, LineEnd, Standing, WindowClaim
from tasks.schema.openai_requests import COMPLETIONS
from tasks.store.jobs import JobStore, new_claim_id
from tasks.store.windows import WindowStore
from tests.support.workers import wait_until
from tests.tasks.helpers.records import ended_long_ago


class Folder(LocalStore):
    """Notes what is read, does something else just before it writes the next results of jobs, and lists
    what a batch left only once it may.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.may_list = threading.Event()
        self.may_list.set()
        self.opened: list[str] = []
        self.meanwhile: Callable[[], object] | None = None

    def open_new(self, name: str) -> NewObject:
        if "/parts/0" in name and self.meanwhile is not None:
            work, self.meanwhile = self.meanwhile, None
            work()
        return super().open_new(name)

    def open(self, name: str) -> Any:
        self.opened.append(name)
        return super().open(name)

    def list(self, prefix: str) -> list[str]:
        self.may_list.wait(60)
        return super().list(prefix)


class IoWorker:
    """One that may lead, round by round."""

    def __init__(self, settings: Settings, store: JobStore) -> None:
        self.files = Folder(Path(settings.files))
        self.keeper = FileManager(self.files, FileRecords(store.db))
        self.driver = BatchLeader(settings, store, self.keeper)

    def until(self, holds: Callable[[], bool]) -> None:
        def after_a_round() -> bool:
            self.driver.run_round()
            return holds()

        wait_until(after_a_round)


class System:
    """Several of them over one store, and what clients and model workers do."""

    def __init__(self, settings: Settings, store: JobStore) -> None:
        self.settings, self.store = settings, store
        self.batches = BatchStore(store.db)
        self._windows = WindowStore(store.db)
        self._claims: dict[str, WindowClaim] = {}
        self._groups: Counter[str] = Counter()
        self.io_workers: list[IoWorker] = []

    def io(self) -> IoWorker:
        self.io_workers.append(IoWorker(self.settings, self.store))
        return self.io_workers[-1]

    def create(self, lines: int, *, bad: int = 0, **fields: Any) -> Batch:
        """bad: lines behind the first that are refused."""
        keeper = FileManager(LocalStore(Path(self.settings.files)), FileRecords(self.store.db))
        with keeper.begin() as out:
            for n in range(lines):
                body = {"prompt": f"line {n}"}
                out.write(
                    json.dumps(
                        {"custom_id": f"id-{n}", "method": "POST", "url": COMPLETIONS, "body": body}
                    ).encode()
                    + b"\n"
                )
                if n == 0:
                    out.write(b"{\n" * bad)
            file_id = out.finish("x.jsonl", Purpose.BATCH).id
        return self.batches.create(NewBatch(COMPLETIONS, file_id, **fields))

    def sent(self, lines: int, io: IoWorker, **fields: Any) -> Batch:
        """A batch whose lines are all sent by this io worker."""
        batch = self.create(lines, **fields)
        io.until(lambda: self.lines_live(batch) == lines)
        return batch

    def lines_live(self, batch: Batch) -> int:
        """Lines that are sent and have not ended."""
        return int(self.store.db.redis.hget(f"{self.store.db.prefix}batch:{batch.id}", "lines_live") or 0)

    def answer(self, batch: Batch, line: int, status: Status = Status.SUCCEEDED) -> None:
        failed = status is Status.FAILED
        claim, index = self._window_of(batch, line)
        entry = json.dumps([line, failed, {"custom_id": f"id-{line - 1}"}], separators=(",", ":")) + "\n"
        end = LineEnd(index, status, entry, 1, code="boom" if failed else None)
        self._advance(claim, [end])

    def _window_of(self, batch: Batch, line: int) -> tuple[WindowClaim, int]:
        """The window of a line, which is claimed with all that are live, and the line's index in it."""
        for window_id in self.batches.live(batch.id):
            if window_id not in self._claims:
                claim = self._windows.claim(window_id, "w", new_claim_id())
                assert isinstance(claim, WindowClaim)
                self._claims[window_id] = claim
                self._advance(claim, [])
            claim = self._claims[window_id]
            numbers = [parts(text).number for text in claim.lines]
            if line in numbers:
                return claim, numbers.index(line)
        raise AssertionError(f"line {line} is in no window")

    def _advance(self, claim: WindowClaim, ends: list[LineEnd]) -> None:
        self._groups[claim.window_id] += 1
        number = self._groups[claim.window_id]
        group = Group(claim.window_id, claim.fencing_token, number, len(claim.lines), ends)
        [answer] = self._windows.advance([group])
        assert answer.standing is Standing.OK

    def falls_silent(self) -> None:
        """Whoever leads."""
        self.store.db.redis.delete(f"{self.store.db.prefix}leader")

    def saved(self) -> dict[bytes, bytes]:
        """All that Redis has under its prefix."""
        with redis.Redis.from_url(self.settings.redis_url) as raw:
            return {key: raw.dump(key) for key in raw.keys(f"{self.store.db.prefix}*")}

    def forgets(self, saved: Mapping[bytes, bytes]) -> None:
        """Redis has lost its last writes, as after a power failure."""
        with redis.Redis.from_url(self.settings.redis_url) as raw:
            raw.delete(*raw.keys(f"{self.store.db.prefix}*"))
            for key, value in saved.items():
                raw.restore(key, 0, value)

    def ended_long_ago(self, batch: Batch) -> None:
        """So that Redis cannot forget it, and its objects may be removed."""
        ended_long_ago(self.batches, batch.id)

    def is_ended(self, batch: Batch) -> bool:
        return self.batches.get(batch.id).ended

    def entries(self, file_id: str | None) -> list[str]:
        assert file_id is not None
        text = Path(self.settings.files, object_name(file_id)).read_text()
        return [json.loads(entry)["custom_id"] for entry in text.splitlines()]

    def objects(self, batch: Batch) -> list[str]:
        return LocalStore(Path(self.settings.files)).list(f"batches/{batch.id}")
