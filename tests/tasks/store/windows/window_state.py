"""A batch's windows, their two workers and messages between two steps, and what the scripts are told."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tests.tasks.helpers.explorer import CLOCK, LIST, MS, NEVER, PREFIX, TTL, Keys

BATCH, OWNER, LEADER = "batch_1", "key_o", "l"
SET_ASIDE, TOOK = 10, 7  # tokens of its owner for a line: while it lives, and in the end if it ran
LEASE = RESEND = 1  # ticks of the clock, a second each
OLD = 2  # ticks; a time longer ago than this is like any other
BEGAN = 1000  # what the clock says first
WORKERS = ("a", "b")


def reconciling(cap: int, resends: bool) -> dict[str, Any]:
    return {
        "max_attempts": cap,
        "resend_after_ms": RESEND * MS if resends else NEVER,
        "ttl_ms": TTL,
        "lease_ms": LEASE * MS,
        "gap_ms": NEVER,
        "limit": 200,
        "queues": [("windows", "", PREFIX + LIST)],
    }


class Window(NamedTuple):
    """A record as it is in the store. live: numbers of its lines that have not ended."""

    id: str
    fields: dict[str, str]
    numbers: tuple[int, ...]

    @property
    def running(self) -> bool:
        return self.fields["status"] == "running"

    def of(self, name: str) -> int:
        return int(self.fields[name])

    @property
    def live(self) -> tuple[int, ...]:
        return tuple(
            number for number, state in zip(self.numbers, self.fields["states"], strict=True) if state == "0"
        )

    @property
    def open(self) -> tuple[int, ...]:
        """Those that may be in an engine."""
        return tuple(number for number in self.numbers[: self.of("opened")] if number in self.live)


class Worker(NamedTuple):
    """What one remembers. numbers: of the lines it was given; opened, ended: of them; group: the last that
    was answered; unheard: the group whose answer was lost (ends, open_to).
    """

    window: str = ""  # "" while it is idle
    token: str = ""
    fence: int = 0  # 0 before its claim
    numbers: tuple[int, ...] = ()
    opened: int = 0
    ended: tuple[int, ...] = ()
    group: int = 0
    unheard: tuple[tuple[int, ...], int] | None = None


class State(NamedTuple):
    """messages: windows that they name. entered: how often each line was put into an engine, without those
    that were handed back; struck: how often its worker was lost while it was open.
    """

    keys: Keys
    messages: tuple[str, ...]
    entered: tuple[int, ...]
    struck: tuple[int, ...]
    workers: tuple[Worker, Worker] = (Worker(), Worker())
    tokens: int = 0

    @property
    def now(self) -> int:
        return int(self.keys[f"string {CLOCK}"])

    @property
    def batch(self) -> dict[str, str]:
        fields: dict[str, str] = self.keys[f"hash batch:{BATCH}"]
        return fields

    @property
    def over(self) -> bool:
        """No line may begin any more."""
        return bool(self.batch["ending"]) or int(self.batch["expires_at"]) <= self.now * MS

    @property
    def windows(self) -> list[Window]:
        found = []
        for name, fields in sorted(self.keys.items()):
            if name.startswith("hash win:"):
                lines = fields["lines"].split("\n")[: int(fields["count"])]
                numbers = tuple(int(line.partition("\t")[0]) for line in lines)
                found.append(Window(name.removeprefix("hash win:"), fields, numbers))
        return found

    @property
    def results(self) -> list[tuple[int, str | None]]:
        """Lines that have ended, with the code of those that nobody ran to their end."""
        texts = self.keys.get(f"list batch:{BATCH}:results", [])
        return [(n, (e.get("error") or {}).get("code")) for n, _, e in map(json.loads, texts)]

    def with_worker(self, index: int, worker: Worker) -> State:
        workers = list(self.workers)
        workers[index] = worker
        return self._replace(workers=tuple(workers))

    def with_message(self, window: str) -> State:
        """Of one window there is one at a time: another comes again when it is taken."""
        if window in self.messages:
            return self
        return self._replace(messages=tuple(sorted((*self.messages, window))))

    def with_counts(self, name: str, numbers: tuple[int, ...], by: int) -> State:
        counts = list(getattr(self, name))
        for number in numbers:
            counts[number - 1] += by
        return self._replace(**{name: tuple(counts)})


def line(number: int) -> str:
    return f'{number}\t{SET_ASIDE}\t0\t""\t"id-{number}"\t{{}}\n'


def entry(number: int) -> str:
    return f"[{number},false,{{}}]\n"
