"""A picture of a mixed load: interactive bursts and idle phases over three batches of different deadlines.

    python -m tests.benchmarks.queue.mixed_load [-o FILE.png] [--record [FILE]]

The scripted engine takes 0.1 s a line and 16 at once, so 160 a second are the most. The bursts run twice,
with the batches and without. Every part but the engine is real.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from docs.measured.figures import FIGURES
from tests.benchmarks.queue.batch_client import client_of, start
from tests.benchmarks.queue.queue_overhead import BenchmarkFailed, Running, whole_stack
from tests.support.measuring.report import SCRIPTED_ENGINE, Report, add_record, shown_command
from tests.support.workers import ROOT

PICTURE = ROOT / "docs" / "pictures" / "mixed-load.png"  # beside the recorded table
LINES = 2400  # of each batch
HOUR_S = 3600.0
BATCHES = (("due in 3 hours", 3), ("due in 2 hours", 2), ("due in 1 hour", 1))  # in the order of creation
LINE = "delay=0.1 x"
BURSTS = 6
BURST_JOBS = 150
BURST_S = 3.0
IDLE_S = 5.0
LOOK_S = 0.25
LIMIT_S = 180.0


@dataclass
class Seen:
    """Times in seconds since the start. done: ended lines of each batch. waits: (when, how long) of jobs."""

    times: list[float] = field(default_factory=list)
    done: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name, _ in BATCHES})
    waits: list[tuple[float, float]] = field(default_factory=list)


def watch(running: Running, with_batches: bool) -> Seen:
    """One run, until the bursts are over and every batch has ended."""
    seen = Seen()
    client = client_of(running)
    now = time.time()
    batches = {
        name: start(client, [LINE] * LINES, deadline=now + hours * HOUR_S).id
        for name, hours in BATCHES
        if with_batches
    }
    began = time.perf_counter()
    bursts = threading.Thread(target=lambda: seen.waits.extend(asyncio.run(_bursts(running.url, began))))
    bursts.start()
    busy = True
    while busy or bursts.is_alive():
        seen.times.append(time.perf_counter() - began)
        if seen.times[-1] > LIMIT_S:
            raise BenchmarkFailed(f"not over after {LIMIT_S} s")
        counts = {name: client.batches.retrieve(batch_id) for name, batch_id in batches.items()}
        for name, batch in counts.items():
            seen.done[name].append(batch.request_counts.completed)
        busy = any(batch.status != "completed" for batch in counts.values())
        time.sleep(LOOK_S)
    bursts.join()
    return seen


async def _bursts(url: str, began: float) -> list[tuple[float, float]]:
    waits: list[tuple[float, float]] = []

    async def one(client: httpx.AsyncClient, after_s: float) -> None:
        await asyncio.sleep(after_s)
        submitted = time.perf_counter()
        body = {"prompt": LINE, "max_tokens": 1}
        response = await client.post("/v1/jobs", json=body, headers={"Prefer": "wait=60"})
        if response.json().get("status") != "succeeded":
            raise BenchmarkFailed(response.text)
        waits.append((submitted - began, response.json()["result"]["timing"]["queue_s"]))

    limits = httpx.Limits(max_connections=BURST_JOBS)
    async with httpx.AsyncClient(base_url=url, timeout=70, limits=limits) as client:
        for _ in range(BURSTS):
            await asyncio.sleep(IDLE_S)
            async with asyncio.TaskGroup() as group:
                for n in range(BURST_JOBS):
                    group.create_task(one(client, n * BURST_S / BURST_JOBS))
    return sorted(waits)


def draw(busy: Seen, quiet: Seen, path: Path) -> None:
    """Lines a second of each batch over time, and below the time in queue of interactive jobs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (rates, waits) = pyplot.subplots(2, 1, figsize=(10, 6), sharex=True, layout="constrained")
    middles = [(a + b) / 2 for a, b in zip(busy.times, busy.times[1:], strict=False)]
    steps = [b - a for a, b in zip(busy.times, busy.times[1:], strict=False)]
    each = [
        [(b - a) / step for a, b, step in zip(done, done[1:], steps, strict=False)]
        for done in busy.done.values()
    ]
    rates.stackplot(middles, each, labels=[f"batch {name}" for name in busy.done], alpha=0.85)
    for submitted, _ in busy.waits[::BURST_JOBS]:
        for axis in (rates, waits):
            axis.axvspan(submitted, submitted + BURST_S, color="0.9", zorder=0)
    rates.set_ylabel("lines of batches a second")
    rates.set_title("Batches fill what interactive bursts (grey) leave, earliest deadline first")
    rates.set_ylim(0, 220)
    rates.legend(loc="upper center", ncols=len(BATCHES))
    for seen, name in ((busy, "beside the batches"), (quiet, "without them")):
        waits.plot(*zip(*((at, wait * 1e3) for at, wait in seen.waits), strict=True), ".", ms=4, label=name)
    waits.set_ylabel("time in queue of an\ninteractive job (ms)")
    waits.set_xlabel("seconds")
    waits.legend(loc="upper right")
    figure.savefig(path, dpi=100)


def _order(seen: Seen) -> list[str]:
    """The batches in the order in which they ended."""
    ended = {name: done.index(LINES) for name, done in seen.done.items()}
    return sorted(ended, key=lambda name: ended[name])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, help=f"the picture (with --record: {PICTURE.name})")
    add_record(parser)
    options = parser.parse_args()
    with whole_stack() as running:
        quiet = watch(running, with_batches=False)
        busy = watch(running, with_batches=True)
    if path := options.output or (PICTURE if options.record == FIGURES else None):
        draw(busy, quiet, path)
    command = shown_command("tests.benchmarks.queue.mixed_load", sys.argv[1:])
    report = Report(command, options.record, SCRIPTED_ENGINE)
    with report.table("mixed-load", "interactive jobs", "in queue p50", "p95", "p99") as table:
        for seen, name in ((quiet, "without batches"), (busy, "beside three batches")):
            cuts = statistics.quantiles([wait * 1e3 for _, wait in seen.waits], n=100, method="inclusive")
            table.row(name, *(f"{cuts[at]:.0f} ms" for at in (49, 94, 98)))
        table.note(f"The batches ended in this order: {', '.join(_order(busy))}.")


if __name__ == "__main__":
    main()
