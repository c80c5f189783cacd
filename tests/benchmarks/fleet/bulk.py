"""What 1 to 500 workers would make of bulk lines: where Redis, the leader or the file store is full.

    python -m tests.benchmarks.fleet.bulk [--lines 20000] [--record [FILE]]

Measured, on a batch through the whole system with an engine that answers at once: what a line costs Redis
and the io worker of processor time, and of bytes in the file store; and how fast this disk keeps bytes.
Simulated: workers of 200 lines a second, with windows of the size that the system sends.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import simpy

from tasks.batches.window_sizes import window_lines
from tasks.store.workers import WorkerInfo
from tasks.worker.windows.held_window import GROUP_LINES
from tests.benchmarks.queue.batch_client import client_of, start
from tests.benchmarks.queue.large_batch import PROMPT, wait
from tests.benchmarks.queue.process_usage import MB, REDIS, Watch
from tests.benchmarks.queue.queue_overhead import whole_stack
from tests.support.measuring.report import SCRIPTED_ENGINE, Report, add_record, shown_command

NAME = "fleet-bulk"
WORKERS = (1, 10, 20, 50, 100, 200, 500)
PER_S = 200.0  # lines a second of a worker
WINDOW = window_lines(WorkerInfo("", "", 0, 16, 0, "", 0.0, metrics={"lines_per_s": PER_S}))
WINDOWS = 2  # that a worker has: one runs, the next waits
SIMULATED_S, WARM_UP_S = 60.0, 20.0
STORED = 64 * MB  # written and synchronised to measure the disk


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds a line of the only thread of each: Redis, the io worker that leads, the file store."""

    redis_s: float
    leader_s: float
    store_s: float

    def most_per_s(self) -> dict[str, float]:
        """Lines a second at which each is full."""
        return {"Redis": 1 / self.redis_s, "io worker": 1 / self.leader_s, "file store": 1 / self.store_s}


@dataclass(slots=True)
class Busy:
    """Ended lines, and seconds in which each was busy."""

    lines: int
    seconds: dict[str, float]


def simulate(workers: int, costs: Costs, per_s: float = PER_S, seconds: float = SIMULATED_S) -> Busy:
    """The last `seconds`, once the workers are in step with what feeds them.

    A closed network: each worker has so many windows, and gets another when the results of one are collected.
    The results of a group of lines pass Redis, the leader and the store, each of which serves one at a time.
    """
    env = simpy.Environment()
    stages = {name: simpy.Resource(env) for name in ("Redis", "io worker", "file store")}
    line_s = dict(zip(stages, (costs.redis_s, costs.leader_s, costs.store_s), strict=True))
    busy = Busy(0, dict.fromkeys(stages, 0.0))

    def collect(lines: int, window: simpy.Event | None) -> Generator[simpy.Event, Any, None]:
        for name, stage in stages.items():
            with stage.request() as turn:
                yield turn
                yield env.timeout(lines * line_s[name])
            if env.now > WARM_UP_S:
                busy.seconds[name] += lines * line_s[name]
        if env.now > WARM_UP_S:
            busy.lines += lines
        if window is not None:
            window.succeed()

    def worker(number: int) -> Generator[simpy.Event, Any, None]:
        yield env.timeout(number / workers * WINDOW / per_s)  # they did not begin at the same moment
        collected: list[simpy.Event] = []
        while True:
            if len(collected) == WINDOWS:
                yield collected.pop(0)
            collected.append(env.event())
            for first in range(0, WINDOW, GROUP_LINES):
                lines = min(GROUP_LINES, WINDOW - first)
                yield env.timeout(lines / per_s)
                last = first + lines == WINDOW
                env.process(collect(lines, collected[-1] if last else None))

    for number in range(workers):
        env.process(worker(number))
    env.run(WARM_UP_S + seconds)
    return busy


def rows(costs: Costs) -> Iterator[list[str]]:
    for workers in WORKERS:
        busy = simulate(workers, costs)
        shares = {name: taken / SIMULATED_S for name, taken in busy.seconds.items()}
        fullest = max(shares, key=shares.__getitem__)
        limit = fullest if shares[fullest] > 0.95 else "the workers"
        rate = busy.lines / SIMULATED_S
        yield [
            *(str(workers), f"{rate:,.0f}", f"{rate / (workers * PER_S):.2f}"),
            *(f"{share:.0%}" for share in shares.values()),
            limit,
        ]


def measure(lines: int) -> Costs:
    """Takes the whole machine for a minute."""
    with whole_stack() as running, Watch(running.processes(), running.redis.port) as watch:
        client = client_of(running)
        batch = start(client, [PROMPT] * lines)
        before = stored(Path(running.settings.files))
        watch.begin()
        wait(client, batch)
        used = watch.seconds()
        size = stored(Path(running.settings.files)) - before
        [io] = [seconds for name, seconds in used.items() if name.startswith("io")]
    return Costs(used[REDIS] / lines, io / lines, size / lines / disk_bytes_per_s())


def stored(folder: Path) -> int:
    """Bytes in a file store."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def disk_bytes_per_s() -> float:
    """Written and synchronised."""
    some = os.urandom(MB)
    with tempfile.NamedTemporaryFile() as file:
        began = time.perf_counter()
        for _ in range(STORED // MB):
            file.write(some)
        file.flush()
        os.fsync(file.fileno())
        return STORED / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=20_000)
    add_record(parser)
    options = parser.parse_args()
    costs = measure(options.lines)
    command = shown_command("tests.benchmarks.fleet.bulk", sys.argv[1:])
    report = Report(command, options.record, SCRIPTED_ENGINE)
    columns = ("workers", "lines/s", "of 200 each", *(f"{name} busy" for name in costs.most_per_s()), "limit")
    with report.table(NAME, *columns) as table:
        for row in rows(costs):
            table.row(*row)
        most = ", ".join(f"{name} {rate:,.0f}" for name, rate in costs.most_per_s().items())
        table.note(f"Measured here, on one thread each, lines/s at most: {most}.")
        table.data.update(asdict(costs))


if __name__ == "__main__":
    main()
