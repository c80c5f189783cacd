"""What 1, 10 and 100 workers would do: a simulation of measured service times.

    python -m tests.benchmarks.fleet [--record [FILE]]     measures what it stands on, and simulates
    python -m tests.benchmarks.fleet --simulate            simulates again what was recorded last

Measured are: how long requests take alone in the real engine, how much slower they become with others beside
them, how many submissions a gateway takes, and how much of Redis's time a job costs. Simulated is the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import redis

from docs.measured.figures import newest, read
from engine import EngineConfig, EngineService, Request, SamplingParams, load
from engine.llama.model import default_model_path
from tasks.records.job import Priority
from tests.benchmarks.batches import submit_all
from tests.benchmarks.common import SLOTS, WARM_UP_PROMPT, WARM_UP_TOKENS
from tests.benchmarks.fleet.model import Load, simulate
from tests.benchmarks.queue.queue_overhead import CONNECTIONS, WARM_UP_JOBS, drive, whole_stack
from tests.support.measuring.report import Report, add_record, shown_command
from tests.support.workers import ROOT

PROMPTS, QUESTIONS = (ROOT / "examples" / name for name in ("prompts.txt", "questions.csv"))

NAME = "fleet"
COMPANY = (2, 4, 8, 16)
OUTPUT_TOKENS = (32, 64, 96, 128)  # at most, in turns
ROUNDS = 2  # of the prompts in each company
JOBS_MEASURED = 1500

FLEETS = (1, 10, 100)
LOOKAHEAD = 4
INTERACTIVE, BULK = 0.3, 0.5  # of what the fleet can do
LINES = 500  # of a batch
JOBS = 40_000
WARM_UP = 0.1  # of the jobs, which meet a fleet that is still empty


@dataclass(frozen=True, slots=True)
class Measured:
    """alone_s: of each request; slowdown: how many times that, by how many run together."""

    alone_s: list[float]
    slowdown: dict[str, float]
    submissions_per_s: float
    redis_s_per_job: float
    redis_bytes_per_job: int

    def speeds(self) -> list[float]:
        """Of each of n running requests, one alone having 1, at index n; straight lines between figures."""
        points = [(1, 1.0), *((int(company), times) for company, times in self.slowdown.items())]
        found = [1.0, 1.0]
        for (low, low_times), (high, high_times) in pairwise(points):
            rise = (high_times - low_times) / (high - low)
            found += [1 / (low_times + rise * step) for step in range(1, high - low + 1)]
        return found

    @property
    def worker_per_s(self) -> float:
        """Requests a second of a worker that is always full."""
        return SLOTS * self.speeds()[SLOTS] / statistics.fmean(self.alone_s)


COLUMNS = (
    *("workers", "jobs/s", "interactive, in queue p50 / p95", "bulk, in queue p50 / p95"),
    *("gateways for the interactive ones", "of one Redis"),
)


def simulated(measured: Measured) -> Iterator[list[str]]:
    """A row for each fleet."""
    for workers in FLEETS:
        rate, waits = _simulated(measured, workers)
        interactive, bulk = (
            _quantiles(waits[priority]) for priority in (Priority.INTERACTIVE, Priority.BULK)
        )
        single = rate * len(waits[Priority.INTERACTIVE]) / sum(map(len, waits.values()))
        gateways, share = single / measured.submissions_per_s, rate * measured.redis_s_per_job
        yield [str(workers), f"{rate:.1f}", interactive, bulk, f"{gateways:.3f}", f"{share:.1%}"]


def stands_on(measured: Measured) -> str:
    """What was measured, in words."""
    gateway, stored = measured.submissions_per_s, 1 / measured.redis_s_per_job
    full = measured.worker_per_s
    single = full * INTERACTIVE / (INTERACTIVE + BULK)
    alone, together = statistics.fmean(measured.alone_s), SLOTS / full
    redis_ms = measured.redis_s_per_job * 1e3
    return (
        f"Measured: a request takes {alone:.2f} s alone and {together:.2f} s beside "
        f"{SLOTS - 1} others, so a full worker ends {full:.2f} a second. A gateway takes {gateway:.0f} "
        f"submissions a second, one for each interactive job; lines of a batch need none. A job costs Redis "
        f"{redis_ms:.2f} ms of its one core, and {measured.redis_bytes_per_job} bytes beside its texts. "
        f"So one gateway process can feed {gateway / full:.0f} full workers if all they do is interactive, "
        f"or {gateway / single:.0f} at the shares of the table, and one Redis {stored / full:.0f}."
    )


def _simulated(measured: Measured, workers: int) -> tuple[float, dict[Priority, list[float]]]:
    """Ended jobs a second, and the times in queue, once the fleet was warm."""
    capacity = workers * measured.worker_per_s
    mixed = Load(
        interactive_per_s=INTERACTIVE * capacity,
        bulk_per_s=BULK * capacity,
        lines=LINES,
        work_s=lambda chance: chance.choice(measured.alone_s),
    )
    ended = simulate(workers, SLOTS, LOOKAHEAD, measured.speeds().__getitem__, mixed, JOBS)
    warm = ended[int(len(ended) * WARM_UP) :]
    waits: dict[Priority, list[float]] = {priority: [] for priority in Priority}
    for request in warm:
        waits[request.priority].append(request.queue_s)
    return len(warm) / (warm[-1].ended - warm[0].ended), waits


def _quantiles(waits: list[float]) -> str:
    cuts = statistics.quantiles(waits, n=100, method="inclusive")
    return f"{_seconds(cuts[49])} / {_seconds(cuts[94])}"


def _seconds(value: float) -> str:
    return (
        f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.1f} s" if value < 100 else f"{value / 60:.0f} min"
    )


def measure() -> Measured:
    """Takes the whole machine for some minutes."""
    alone, slowdown = _service_times()
    with whole_stack() as running:
        asyncio.run(submit_all(running, Priority.BULK, WARM_UP_JOBS))
        took, _, _ = asyncio.run(submit_all(running, Priority.BULK, JOBS_MEASURED))
    with whole_stack() as running, redis.Redis(port=running.redis.port) as server:
        before = _used(server)
        ran = asyncio.run(drive(running.url, WARM_UP_JOBS, JOBS_MEASURED, CONNECTIONS))
        seconds, size = ((now - then) / ran.jobs for now, then in zip(_used(server), before, strict=True))
    return Measured(alone, slowdown, round(JOBS_MEASURED / took, 1), round(seconds, 6), int(round(size, -1)))


def _used(server: redis.Redis) -> tuple[float, float]:
    """Seconds of its processor, and bytes."""
    found: Any = server.info()
    return found["used_cpu_user"] + found["used_cpu_sys"], found["used_memory"]


def _service_times() -> tuple[list[float], dict[str, float]]:
    """Of each request alone, and by how much longer they take in company, in the mean."""
    with QUESTIONS.open(encoding="utf-8", newline="") as rows:
        prompts = [row["question"] for row in csv.DictReader(rows)]
    prompts += PROMPTS.read_text(encoding="utf-8").splitlines()
    service = load(EngineConfig(slots=SLOTS, prefix_sharing=False))  # prompts come again
    try:
        service.submit(_request("warm-up", WARM_UP_PROMPT, WARM_UP_TOKENS)).result()
        alone = [taken for _, taken in sorted(_closed_loop(service, prompts, 1, 1))]
        slowdown = {
            str(company): round(
                statistics.fmean(
                    taken / alone[number % len(alone)]
                    for number, taken in _closed_loop(service, prompts, company, ROUNDS)
                ),
                3,
            )
            for company in COMPANY
        }
    finally:
        service.close()
    return [round(each, 4) for each in alone], slowdown


def _closed_loop(
    service: EngineService, prompts: list[str], company: int, rounds: int
) -> list[tuple[int, float]]:
    """Number and seconds of each request that always had so many running, itself among them.

    Whoever ends is followed at once by the next; those that end when there is no next are left out.
    """
    left = iter(range(rounds * len(prompts)))
    taken: list[tuple[int, float]] = []
    over = threading.Event()

    def client() -> None:
        for number in left:
            began = time.perf_counter()
            tokens = OUTPUT_TOKENS[number % len(prompts) % len(OUTPUT_TOKENS)]
            request = _request(f"{company}-{number}", prompts[number % len(prompts)], tokens)
            service.submit(request).result()
            if not over.is_set():
                taken.append((number, time.perf_counter() - began))
        over.set()

    threads = [threading.Thread(target=client) for _ in range(company)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken


def _request(name: str, prompt: str, tokens: int) -> Request:
    return Request(id=name, prompt=prompt, sampling=SamplingParams(max_tokens=tokens))


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--simulate", action="store_true", help="from what was recorded last")
    add_record(options)
    chosen = options.parse_args()
    recorded = newest(NAME, read())
    if chosen.simulate and recorded is None:
        raise SystemExit("error: nothing was recorded yet")
    found = Measured(**recorded.data) if chosen.simulate and recorded else measure()
    model = Path(default_model_path()).name
    report = Report(shown_command("tests.benchmarks.fleet", []), chosen.record, model)
    with report.table(NAME, *COLUMNS) as table:
        for row in simulated(found):
            table.row(*row)
        table.note(stands_on(found))
        table.data.update(asdict(found))


if __name__ == "__main__":
    main()
