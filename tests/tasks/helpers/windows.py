"""Short ways to say what the tests of windows say often."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tasks.base.settings import Settings
from tasks.batches.store import BatchStore
from tasks.records.batch import NOTHING_RUNS, Batch
from tasks.records.job import Status
from tasks.records.window import Advanced, Group, LineEnd, NewWindow, Running, WindowClaim
from tasks.store.jobs import JobStore, new_claim_id
from tasks.store.windows import WindowStore
from tests.tasks.helpers.batches import ROOM, made
from tests.tasks.helpers.records import WORKER, batch_store

LEADER = "leader"
MAX_TOKENS = 10  # of each line's request
OPEN_ALL = 1000


def packed(number: int, model: str = "") -> bytes:
    request = json.dumps({"prompt": f"p{number}", "max_tokens": MAX_TOKENS})
    return (
        f"{number}\t{MAX_TOKENS}\t0\t{json.dumps(model)}\t{json.dumps(f'id-{number}')}\t{request}\n".encode()
    )


def entry(number: int, *, failed: bool = False) -> str:
    """As a segment holds it, but for what is in it."""
    return json.dumps([number, failed, {"custom_id": f"id-{number}"}]) + "\n"


@dataclass
class Windows:
    """A batch under way, whose lines are sent and run as windows."""

    store: JobStore
    batches: BatchStore
    windows: WindowStore
    batch: Batch

    @classmethod
    def begun(cls, settings: Settings, **fields: object) -> Windows:
        """Close its store. fields: of the batch."""
        store = JobStore(settings)
        batches = batch_store(store)
        batch = made(batches, **fields)
        batches.lead(LEADER, ROOM)
        return cls(store, batches, WindowStore(store.db), batch)

    def id_of(self, first: int) -> str:
        return f"win_{self.batch.id.removeprefix('batch_')}-{first}"

    def send(self, *windows: Sequence[int], model: str = "", model_queue: str = "") -> list[str]:
        """Windows of lines with these numbers, the next of the batch."""
        new = [NewWindow(model, [packed(number, model) for number in numbers]) for numbers in windows]
        after = (self.batch.chunk + 1, 0)
        assert self.windows.send(LEADER, self.batch, after, new, model_queue)
        self.batch = replace(self.batch, chunk=after[0], offset=after[1])
        return [self.id_of(numbers[0]) for numbers in windows]

    def claim(self, window_id: str, model: str = "") -> WindowClaim:
        claim = self.windows.claim(window_id, WORKER, new_claim_id(), model)
        assert isinstance(claim, WindowClaim), claim
        return claim

    def advance(
        self,
        claim: WindowClaim,
        number: int,
        *ended: int,
        open_to: int = OPEN_ALL,
        running: Running = NOTHING_RUNS,
        **fields: Any,
    ) -> Advanced:
        """Write the ends of lines with these indexes; fields: of each."""
        ends = [self.end(claim, index, **fields) for index in ended]
        group = Group(claim.window_id, claim.fencing_token, number, open_to, ends, running)
        [answer] = self.windows.advance([group])
        return answer

    def end(
        self, claim: WindowClaim, index: int, status: Status = Status.SUCCEEDED, **fields: Any
    ) -> LineEnd:
        number = number_of(claim.lines[index])
        return LineEnd(
            index, status, entry(number, failed=status is not Status.SUCCEEDED), MAX_TOKENS, **fields
        )

    def results(self) -> list[list[Any]]:
        """Lines that have ended, in that order."""
        texts = self.store.db.redis.lrange(f"{self.key}:results", 0, -1)
        assert all(text.endswith("\n") and text.count("\n") == 1 for text in texts)
        return [json.loads(text) for text in texts]

    def codes(self) -> dict[int, str | None]:
        """Of each line that has ended, why it has failed."""
        return {n: (e.get("error") or {}).get("code") for n, _, e in self.results()}

    def live(self) -> set[str]:
        members: set[str] = self.store.db.redis.smembers(f"{self.key}:live")
        return members

    def record(self, window_id: str) -> dict[str, str]:
        """Empty once it has ended."""
        fields: dict[str, str] = self.store.db.redis.hgetall(f"{self.store.db.prefix}win:{window_id}")
        return fields

    def counted(self, *names: str) -> list[int]:
        """Counters of the batch."""
        return [int(value or 0) for value in self.store.db.redis.hmget(self.key, names)]

    def number(self, hash_name: str, field: str) -> int:
        return int(self.store.db.redis.hget(f"{self.store.db.prefix}{hash_name}", field) or 0)

    def messages(self, model: str = "") -> list[dict[str, Any]]:
        """Those that wait, oldest first."""
        name = "medusaq.windows" + (f".{model}" if model else "")
        texts = self.store.db.redis.lrange(f"{self.store.db.prefix}{name}", 0, -1)
        return [json.loads(text) for text in texts[::-1]]

    def sent(self, model: str = "") -> list[str]:
        return [message["headers"]["id"] for message in self.messages(model)]

    @property
    def key(self) -> str:
        return f"{self.store.db.prefix}batch:{self.batch.id}"


def number_of(line: str) -> int:
    return int(line.partition("\t")[0])


def numbers_of(claim: WindowClaim) -> list[int]:
    return [number_of(line) for line in claim.lines]
