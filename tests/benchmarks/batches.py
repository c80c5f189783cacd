"""A large batch through the whole system, and what it does to everybody else.

    python -m tests.benchmarks.batches [--only large submit poll interactive hostile ...] [--lines 50000]
                                       [--against CHECKOUT] [--record [FILE]]

Every part is real but the engine, which answers at once or after a scripted delay; `instructions` has
the real one, and `poll` both.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import httpx
import redis

from engine.llama.model import default_model_path
from tasks.records.job import Priority
from tests.benchmarks.queue.batch_client import client_of, start
from tests.benchmarks.queue.beside_celery import beside_celery
from tests.benchmarks.queue.hostile_batches import hostile
from tests.benchmarks.queue.large_batch import POLL_S, PROMPT, large, million, wait
from tests.benchmarks.queue.queue_overhead import (
    CONNECTIONS,
    BenchmarkFailed,
    Running,
    whole_stack,
)
from tests.support.measuring.report import SCRIPTED_ENGINE, Report, add_record, shown_command
from tests.support.workers import SCRIPTED

WARM_UP_JOBS = 200
REAL = "engine:load"

POLLERS, POLLED_JOBS = 64, 2000
CLIENT_POLL_S = 1.0
POLLED_ENGINES = (
    ("scripted, 100 ms a line", SCRIPTED, ("delay=0.1 x", 1)),
    ("the real one", REAL, ("Count from one to twenty.", 32)),
)

INPUTS = 120
ANSWER_TOKENS = 8
RULE = "Rule {number}: a case of kind {number} goes to desk {number}, and its answer names the desk."
RULES = 12


def submit(options: argparse.Namespace, report: Report) -> None:
    """Submissions alone, over many connections; every one is looked for afterwards."""
    columns = ("jobs", f"a second over {CONNECTIONS} connections", "p50", "p99", "lost")
    with report.table("submit", *columns) as table:
        for priority in Priority:
            took, each = _submitted(priority, options.jobs)
            cuts = statistics.quantiles(each, n=100, method="inclusive")
            times = (f"{cuts[at] * 1e3:.0f} ms" for at in (49, 98))
            table.row(priority, f"{options.jobs / took:.0f}", *times, 0)


def _submitted(priority: Priority, jobs: int) -> tuple[float, list[float]]:
    """Seconds in all, and of each. Raises BenchmarkFailed where one is lost."""
    with whole_stack() as running:
        asyncio.run(submit_all(running, priority, WARM_UP_JOBS))
        took, each, ids = asyncio.run(submit_all(running, priority, jobs))
        with redis.Redis(port=running.redis.port, decode_responses=True) as server:
            known = set(server.zrange(f"{running.settings.key_prefix}jobs", 0, -1))
    if lost := [job_id for job_id in ids if job_id not in known]:
        raise BenchmarkFailed(f"{len(lost)} of {len(ids)} accepted jobs are not there")
    return took, each


async def submit_all(running: Running, priority: str, jobs: int) -> tuple[float, list[float], list[str]]:
    """Seconds in all, of each, and the ids. The jobs wait: what runs them is not the subject."""
    left, each, ids = iter(range(jobs)), list[float](), list[str]()
    body = {"prompt": f"delay=30 {PROMPT}", "max_tokens": 1, "priority": priority}

    async def one_connection(client: aiohttp.ClientSession) -> None:
        for _ in left:
            began = time.perf_counter()
            async with client.post("/v1/jobs", json=body) as response:
                answer = await response.json()
            if response.status != httpx.codes.ACCEPTED:
                raise BenchmarkFailed(f"{response.status} {answer}")
            each.append(time.perf_counter() - began)
            ids.append(answer["id"])

    # A client that takes little of the two cores which it shares with the gateway.
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    async with aiohttp.ClientSession(running.url, connector=connector) as client:
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                group.create_task(one_connection(client))
        return time.perf_counter() - began, each, ids


@contextmanager
def busy(running: Running, lines: int, prompt: str, tokens: int = 1) -> Iterator[Callable[[], int]]:
    """A batch under way; gives a function that says how many of its lines have ended."""
    client = client_of(running)
    batch = start(client, [prompt] * lines, tokens)

    def done() -> int:
        counts = client.batches.retrieve(batch.id).request_counts
        return int(counts.completed + counts.failed)

    while done() < 50:
        time.sleep(POLL_S)
    yield done
    client.batches.cancel(batch.id)


def interactive(options: argparse.Namespace, report: Report) -> None:
    """Single jobs beside a large batch: how long they wait."""
    beside = f"beside a batch of {options.lines:,} lines of 100 ms"
    with report.table("interactive", "interactive jobs", "in queue p50", "p95") as table:
        for name, lines in (("without a batch", 0), (beside, options.lines)):
            with whole_stack() as running:
                if lines:
                    with busy(running, lines, "delay=0.1 x"):
                        waits = _waits(running.url)
                else:
                    waits = _waits(running.url)
            cuts = statistics.quantiles(waits, n=100, method="inclusive")
            table.row(name, *(f"{cuts[at] * 1e3:.0f} ms" for at in (49, 94)))


def _waits(url: str, jobs: int = 100) -> list[float]:
    waits = []
    with httpx.Client(base_url=url, timeout=60) as client:
        for _ in range(jobs):
            record = client.post("/v1/jobs", json={"prompt": "hi"}, headers={"Prefer": "wait=30"}).json()
            waits.append(record["result"]["timing"]["queue_s"])
            time.sleep(0.05)
    return waits


def poll(options: argparse.Namespace, report: Report) -> None:
    """Beside the scripted engine, and beside the real one, whose cores the clients share."""
    polled = f"beside {POLLERS} clients"
    columns = ("engine", "lines/s without polling", polled, "ratio", "polls/s")
    with report.table("poll", *columns, model="") as table:
        for name, engine, work in POLLED_ENGINES:
            quiet, beside, asked = _polled(options, engine, *work)
            ratio = statistics.fmean(beside) / statistics.fmean(quiet)
            rates = (f"{statistics.fmean(rate):.1f}" for rate in (quiet, beside))
            table.row(name, *rates, f"{ratio:.3f}", f"{asked / (options.rounds * options.seconds):.0f}")


def _polled(
    options: argparse.Namespace, engine: str, prompt: str, tokens: int
) -> tuple[list[float], list[float], int]:
    """Bulk work with and without many clients that look at 2,000 jobs, in turns; lines ended a second."""
    quiet, polled, asked = list[float](), list[float](), 0
    with whole_stack(engine) as running:
        ended = _ended_jobs(running.url, POLLED_JOBS)
        with busy(running, options.lines, prompt, tokens) as done:
            for _ in range(options.rounds):
                quiet.append(_rate(done, options.seconds))
                with _Pollers(running.url, ended) as pollers:
                    polled.append(_rate(done, options.seconds))
                asked += pollers.answers
    return quiet, polled, asked


def _rate(done: Callable[[], int], seconds: float) -> float:
    began, before = time.perf_counter(), done()
    time.sleep(seconds)
    after = done()
    return (after - before) / (time.perf_counter() - began)


def _ended_jobs(url: str, jobs: int) -> list[str]:
    """Jobs to look at, with their results."""
    body = {"prompt": PROMPT, "priority": "bulk", "max_tokens": 1}
    with httpx.Client(base_url=url, timeout=60) as client:
        ids = [client.post("/v1/jobs", json=body).json()["id"] for _ in range(jobs)]
        for job_id in ids:
            while client.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=60"}).json()["result"] is None:
                pass
    return ids


class _Pollers:
    """Clients that each ask for the next of their jobs once a second."""

    def __init__(self, url: str, jobs: list[str]) -> None:
        self.answers = 0
        self._url, self._jobs = url, jobs
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> _Pollers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    async def _run(self) -> None:
        connector = aiohttp.TCPConnector(limit=POLLERS)
        async with (
            aiohttp.ClientSession(self._url, connector=connector) as client,
            asyncio.TaskGroup() as group,
        ):
            for first in range(POLLERS):
                group.create_task(self._one(client, first))

    async def _one(self, client: aiohttp.ClientSession, first: int) -> None:
        await asyncio.sleep(first / POLLERS * CLIENT_POLL_S)
        for job_id in itertools.cycle(self._jobs[first::POLLERS]):
            if self._stop.is_set():
                return
            began = time.perf_counter()
            async with client.get(f"/v1/jobs/{job_id}") as response:
                answer = await response.text()
            if response.status != httpx.codes.OK:
                raise BenchmarkFailed(f"{response.status} {answer}")
            self.answers += 1
            await asyncio.sleep(max(0.0, CLIENT_POLL_S - (time.perf_counter() - began)))


def instructions(_options: argparse.Namespace, report: Report) -> None:
    """Long instructions in turns, on the real engine: a batch, and single jobs in the file's order."""
    columns = ("instructions", "slots", "as a batch, prompt tokens computed", "time")
    singly = ("as single jobs in the file's order, prompt tokens computed", "time")
    with report.table("instructions", *columns, *singly, model=Path(default_model_path()).name) as table:
        for count, slots in ((5, 16), (5, 4), (40, 16)):
            table.row(count, slots, *_beside_each_other(count, slots))
        table.note(f"Instructions of some 300 tokens in turns over {INPUTS} lines.")


def _beside_each_other(count: int, slots: int) -> tuple[str, ...]:
    """Computed tokens and seconds of a batch, and of single jobs."""
    texts = _instructions(count)
    prompts = [f"{texts[i % count]} Parcel {i // count} is late." for i in range(INPUTS)]
    with whole_stack(REAL, slots=slots) as running:
        client, began = client_of(running), time.perf_counter()
        batch = start(client, prompts, ANSWER_TOKENS)
        wait(client, batch)
        took, usage = time.perf_counter() - began, client.batches.retrieve(batch.id).usage
    as_batch = _computed(usage.input_tokens, usage.input_tokens_details.cached_tokens, took)
    with whole_stack(REAL, slots=slots) as running:
        began = time.perf_counter()
        total, cached = asyncio.run(_one_by_one(running.url, prompts))
    return *as_batch, *_computed(total, cached, time.perf_counter() - began)


def _computed(tokens: int, cached: int, took: float) -> tuple[str, str]:
    return f"{tokens - cached:,} of {tokens:,}", f"{took:.1f} s"


def _instructions(count: int) -> list[str]:
    rules = " ".join(RULE.format(number=n + 1) for n in range(RULES))
    return [f"You are clerk {n} of a delivery company. {rules}" for n in range(count)]


async def _one_by_one(url: str, prompts: list[str]) -> tuple[int, int]:
    """Prompt tokens in all, and those that were not computed."""
    limits = httpx.Limits(max_connections=len(prompts))
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        ids = []
        for prompt in prompts:
            body = {"prompt": prompt, "raw": True, "max_tokens": ANSWER_TOKENS, "priority": "bulk"}
            ids.append((await client.post("/v1/jobs", json=body)).json()["id"])

        async def usage(job_id: str) -> dict[str, int]:
            while True:
                answer = await client.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=60"})
                if answer.json()["status"] == "succeeded":
                    return dict(answer.json()["result"]["usage"])

        usages = await asyncio.gather(*(usage(job_id) for job_id in ids))
    return sum(u["prompt_tokens"] for u in usages), sum(
        u["prompt_tokens_details"]["cached_tokens"] for u in usages
    )


BENCHMARKS: dict[str, Callable[[argparse.Namespace, Report], None]] = {
    "large": large,
    "celery": beside_celery,
    "submit": submit,
    "poll": poll,
    "interactive": interactive,
    "instructions": instructions,
    "hostile": hostile,
    "million": million,
}
LEFT_OUT = {"million"}  # unless --only names it


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    most = [name for name in BENCHMARKS if name not in LEFT_OUT]
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), default=most)
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--many", type=int, default=1_000_000, help="lines of million")
    add_record(parser)
    parser.add_argument("--jobs", type=int, default=4000, help="of submit")
    parser.add_argument("--batches", type=int, default=40, help="of hostile, beside each attack")
    parser.add_argument("--rounds", type=int, default=5, help="of poll and celery, and of large --against")
    parser.add_argument("--against", type=Path, help="an earlier checkout, for large")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each round of poll")
    options = parser.parse_args()
    for name in options.only:
        print(f"== {name}", flush=True)
        command = shown_command("tests.benchmarks.batches", sys.argv[1:], only=name)
        BENCHMARKS[name](options, Report(command, options.record, SCRIPTED_ENGINE))


if __name__ == "__main__":
    main()
