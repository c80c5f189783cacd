"""A batch and its io workers between two steps, what their scripts are told, and what must hold in any state.

The file has three lines, the second of which is refused. Chunks are the same whoever writes them, and the
name of a segment says what is in it, so that no state needs files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tasks.store.scripts import Argument
from tests.tasks.helpers.batch_scripts import BATCH, OWNER, creating, sending
from tests.tasks.helpers.explorer import CLOCK, MS, Keys, Server

IO_WORKERS = ("a", "b")
LINES = 3
REFUSED = 2
CHUNKS = ((1,), (3,))
BEGAN = 1000  # what the clock says
FOR_HOURS = 10**6
TOOK, SET_ASIDE = 7, 10  # tokens of a line


def created(server: Server) -> Keys:
    """The keys with a batch that nobody has read, and its first leader."""
    keys: Keys = {f"string {CLOCK}": str(BEGAN), "hash file:file": {"id": "file"}}
    for name, told in (
        ("batches/create", (creating(FOR_HOURS * MS),)),
        ("leader/lead", leads(IO_WORKERS[0])),
    ):
        [(_, keys)] = server.run([(keys, name, told)])
    return keys


def leads(io_worker: str) -> tuple[Argument, ...]:
    return io_worker, "{}", "{}", 4, "id"


def sends(io_worker: str, chunk: int) -> tuple[Argument, ...]:
    lines = (f'{n}\t{SET_ASIDE}\t0\t""\t"id-{n}"\t{{}}\n' for n in CHUNKS[chunk])
    return sending(io_worker, chunk), "".join(lines)


def validates(
    io_worker: str, *, chunks: int, lines: int, refused: Iterable[int]
) -> tuple[dict[str, Any], str]:
    numbers = tuple(refused)
    arguments = {
        "token": io_worker,
        "id": BATCH,
        "chunks": chunks,
        "lines": lines,
        "invalid": len(numbers),
        "model": "",
        "codes": {"bad": len(numbers)} if numbers else {},
        "segment": segment("invalid", io_worker, numbers) if numbers else None,
    }
    return arguments, "[]"


def segment(kind: str, io_worker: str, numbers: Iterable[int]) -> str:
    return f"{kind}-{io_worker}-{','.join(map(str, numbers))}"


def lines_in(name: str) -> tuple[int, ...]:
    return tuple(map(int, name.rpartition("-")[2].split(",")))


def number_of(entry: str) -> int:
    return int(json.loads(entry)[0])


class View:
    """What the store says of the batch."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self.fields: dict[str, str] = keys[f"hash batch:{BATCH}"]
        self.leader: str = keys["string led_by"]
        self.windows: dict[str, int] = {}  # the id of each, and the number of its line
        for name, fields in keys.items():
            if name.startswith("hash win:"):
                self.windows[fields["id"]] = int(fields["lines"].partition("\t")[0])
        self.results = tuple(map(number_of, keys.get(f"list batch:{BATCH}:results", [])))
        self.segments: tuple[str, ...] = tuple(keys.get(f"list batch:{BATCH}:parts", ()))

    def of(self, name: str) -> int:
        return int(self.fields.get(name) or 0)

    @property
    def validated(self) -> bool:
        return self.fields["validated"] == "1"

    @property
    def ending(self) -> str:
        return self.fields["ending"]

    @property
    def over(self) -> bool:
        return "zset batches:active" not in self.keys

    @property
    def nothing_to_send(self) -> bool:
        return self.validated and (bool(self.ending) or self.of("chunk") >= self.of("chunks"))

    @property
    def settled(self) -> bool:
        """Whether all lines have ended that ever will, as the leader counts them."""
        live = len(self.keys.get(f"set batch:{BATCH}:live", ())) - bool(self.results)
        return self.nothing_to_send and not live

    @property
    def failed(self) -> bool:
        return self.fields["status"] == "failed"

    @property
    def unsent(self) -> tuple[int, ...]:
        return tuple(n for chunk in CHUNKS[self.of("chunk") : self.of("chunks")] for n in chunk)

    @property
    def collected(self) -> tuple[int, ...]:
        """Lines in segments that count."""
        return tuple(n for name in self.segments for n in lines_in(name))


def answered(server: Server, keys: Keys, window_id: str) -> Keys:
    """The same after a worker has run a window to its end: other tests part that into steps."""
    claim = {
        "id": window_id,
        "worker": "w",
        "claim_id": "t",
        "lease_ms": MS,
        "max_attempts": 2,
        "model": "",
    }
    [(answer, keys)] = server.run([(keys, "windows/claim", (claim,))])
    if answer[0] != "claimed":
        return keys
    number = int(answer[2].partition("\t")[0])
    group: dict[str, Any] = {
        "id": window_id,
        "fencing_token": json.loads(answer[1])["fencing_token"],
        "codes": {},
        "open": 1,
        "cut": 0,
        "input_tokens": 0,
        "cached_tokens": 0,
    }
    opens = {**group, "group": 1, "ends": [], "statuses": {}, "output_tokens": 0, "set_aside": 0}
    ends = {**group, "group": 2, "ends": [0], "statuses": {"succeeded": 1}, "output_tokens": TOOK}
    ends["set_aside"] = SET_ASIDE
    groups: tuple[tuple[Argument, ...], ...] = ((opens,), (ends, f"[{number},false,{{}}]\n"))
    for arguments in groups:
        [(_, keys)] = server.run([(keys, "windows/advance", arguments)])
    return keys


def check_lines(after: View) -> None:
    """Each line is in one place, and counted as what it is."""
    running = tuple(after.windows.values())
    refused = tuple(n for name in after.segments if name.startswith("invalid") for n in lines_in(name))
    ended = tuple(n for n in (*after.collected, *after.results) if n not in refused)
    sent = [n for chunk in CHUNKS[: after.of("chunk")] for n in chunk]
    assert sorted((*running, *ended)) == sent, "a line that was sent is lost, or there twice"
    assert after.of("lines_live") == len(running), "lines in windows are miscounted"
    assert after.of("completed") + after.of("failed") == len(ended) + len(refused), "ends are miscounted"
    assert after.of("output_tokens") == TOOK * after.of("completed"), "tokens are miscounted"
    if not after.validated:
        assert not refused, "a line is refused of a file that nobody has read"
        return
    known = (*running, *ended, *refused, *after.unsent)
    assert after.of("total") == len(known) == len(set(known)), "its lines are miscounted"
    assert after.ending or sorted(known) == [*range(1, LINES + 1)], "a line was not read"
    assert int(after.keys.get(f"hash batch:{BATCH}:codes", {}).get("bad", 0)) == len(refused)


def check_stored(after: View) -> None:
    records = [after.fields, *(after.keys[f"hash win:{window}"] for window in after.windows)]
    stored = sum(int(record["stored"]) for record in records)
    results = sum(map(len, after.keys.get(f"list batch:{BATCH}:results", [])))
    assert after.over or after.of("result_bytes") == results, "the bytes of results are miscounted"
    assert after.keys["hash stored_bytes"] == {OWNER: str(stored + results)}, "bytes are miscounted"
