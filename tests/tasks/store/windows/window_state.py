"""A batch's windows, their two workers and messages between two steps, and what the scripts are told."""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any, NamedTuple

from tests.tasks.helpers.batch_scripts import BATCH
from tests.tasks.helpers.explorer import CLOCK, LIST, MS, NEVER, PREFIX, TTL, Keys, view_of

LEADER = "l"
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
    """A record as it is in the store. live: numbers of its lines that have not ended; lease: when it runs
    out, ms; 0 for one that does not run.
    """

    id: str
    fields: dict[str, str]
    numbers: tuple[int, ...]
    live: tuple[int, ...]
    lease: int

    @property
    def running(self) -> bool:
        return self.fields["status"] == "running"

    def of(self, name: str) -> int:
        return int(self.fields[name])

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


class View:
    """What the store says. results: lines that have ended, with the code of those that nobody ran to their
    end. over: no line may begin any more. checked, essence: notes of whoever has checked and compared it.
    """

    def __init__(self, keys: Keys) -> None:
        self.now = int(keys[f"string {CLOCK}"])
        self.batch: dict[str, str] = keys[f"hash batch:{BATCH}"]
        self.over = bool(self.batch["ending"]) or int(self.batch["expires_at"]) <= self.now * MS
        leases = keys.get("zset window_leases", {})
        self.windows: list[Window] = []
        for name in sorted(name for name in keys if name.startswith("hash win:")):
            fields, window_id = keys[name], name.removeprefix("hash win:")
            lines = fields["lines"].split("\n")[: int(fields["count"])]
            numbers = tuple(int(line.partition("\t")[0]) for line in lines)
            live = tuple(n for n, state in zip(numbers, fields["states"], strict=False) if state == "0")
            self.windows.append(Window(window_id, fields, numbers, live, int(leases.get(window_id, 0))))
        self.by_id = {window.id: window for window in self.windows}
        texts = keys.get(f"list batch:{BATCH}:results", [])
        self.results = [(n, (e.get("error") or {}).get("code")) for n, _, e in map(json.loads, texts)]
        self.live = sorted(number for window in self.windows for number in window.live)
        self.checked: object = None
        self.essence: tuple[object, Hashable] | None = None


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
    def view(self) -> View:
        return view_of(self.keys, View)

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
