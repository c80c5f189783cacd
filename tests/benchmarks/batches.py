"""A large batch through the whole system, and what it does to everybody else.

    python -m tests.benchmarks.batches [--only large submit poll interactive] [--lines 50000]

Every part is real but the engine, which answers at once or after a scripted delay.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import redis

from tests.benchmarks.queue_overhead import CONNECTIONS, BenchmarkFailed, Running, whole_stack

PROMPT = "x" * 200  # the answer repeats it
POLL_S = 0.1
TIMEOUT_S = 1200.0
MB = 2**20


def line(number: int, prompt: str) -> str:
    body = {"model": "scripted", "prompt": prompt, "max_tokens": 1}
    value = {"custom_id": f"id-{number}", "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps(value)


def client_of(running: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="benchmark", timeout=600)


def start(client: openai.OpenAI, prompts: list[str], **extra: Any) -> Any:
    content = "".join(line(n, prompt) + "\n" for n, prompt in enumerate(prompts)).encode()
    uploaded = client.files.create(file=("lines.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=uploaded.id, endpoint="/v1/completions", completion_window="24h", extra_body=extra
    )


class Watch:
    """Peak memory of the gateway, the io worker and Redis, in bytes."""

    def __init__(self, running: Running) -> None:
        self.peaks = dict.fromkeys(("gateway", "io worker", "Redis"), 0)
        self._running = running
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _loop(self) -> None:
        with redis.Redis(port=self._running.redis.port) as server:
            while not self._stop.wait(0.2):
                now = {
                    "gateway": rss(self._running.gateway_pid),
                    "io worker": rss(self._running.io_pid),
                    "Redis": int(server.info("memory")["used_memory"]),
                }
                for name, size in now.items():
                    self.peaks[name] = max(self.peaks[name], size)


def rss(pid: int) -> int:
    for row in Path(f"/proc/{pid}/status").read_text().splitlines():
        if row.startswith("VmRSS"):
            return int(row.split()[1]) * 1024
    return 0


def large(options: argparse.Namespace) -> None:
    """One file of many lines, from the upload to the output."""
    with whole_stack() as running, Watch(running) as watch:
        client = client_of(running)
        began = time.perf_counter()
        batch = start(client, [PROMPT] * options.lines)
        created = time.perf_counter()
        first = validated = 0.0
        while batch.status not in ("completed", "failed", "expired", "cancelled"):
            time.sleep(POLL_S)
            batch = client.batches.retrieve(batch.id)
            now = time.perf_counter() - created
            if not first and batch.request_counts.completed:
                first = now
            if not validated and batch.status != "validating":
                validated = now
            if now > TIMEOUT_S:
                raise BenchmarkFailed(f"not done after {TIMEOUT_S} s: {batch}")
        took = time.perf_counter() - created
        output = client.files.content(batch.output_file_id).read().splitlines()
        ids = [json.loads(entry)["custom_id"] for entry in output]
        if ids != [f"id-{n}" for n in range(options.lines)]:
            raise BenchmarkFailed("the output is not complete, or not in order")
        print(f"{options.lines:,} lines: uploaded in {created - began:.1f} s, then")
        print(f"first result after {first:.1f} s,")
        print(f"all validated and recorded after {validated:.1f} s,")
        print(f"output complete and in order after {took:.0f} s")
        for name, peak in watch.peaks.items():
            print(f"{name:<10} at most {peak / MB:.0f} MB")


def submit(options: argparse.Namespace) -> None:
    """Submissions alone, over many connections."""
    with whole_stack() as running:
        times = asyncio.run(_submit(running.url, options.jobs))
    took, each = times
    cuts = statistics.quantiles(each, n=100, method="inclusive")
    print(f"{options.jobs / took:.0f} submissions/s over {CONNECTIONS} connections, ", end="")
    print(f"p50 {cuts[49] * 1e3:.0f} ms, p99 {cuts[98] * 1e3:.0f} ms")


async def _submit(url: str, jobs: int) -> tuple[float, list[float]]:
    """Seconds in all, and of each."""
    left, each = iter(range(jobs)), list[float]()
    body = {"prompt": PROMPT, "max_tokens": 1, "priority": "bulk"}

    async def one_connection(client: httpx.AsyncClient) -> None:
        for _ in left:
            began = time.perf_counter()
            response = await client.post("/v1/jobs", json=body)
            if response.status_code not in (200, 202):
                raise BenchmarkFailed(f"{response.status_code} {response.text}")
            each.append(time.perf_counter() - began)

    limits = httpx.Limits(max_connections=CONNECTIONS)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        await client.get("/healthz")
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                group.create_task(one_connection(client))
        return time.perf_counter() - began, each


@contextmanager
def busy(running: Running, lines: int, delay_s: float) -> Iterator[Callable[[], int]]:
    """A batch under way; gives a function that says how many of its lines have ended."""
    client = client_of(running)
    batch = start(client, [f"delay={delay_s} x"] * lines)

    def done() -> int:
        counts = client.batches.retrieve(batch.id).request_counts
        return int(counts.completed + counts.failed)

    while done() < 50:
        time.sleep(POLL_S)
    yield done
    client.batches.cancel(batch.id)


def interactive(options: argparse.Namespace) -> None:
    """Single jobs beside a large batch: how long they wait."""
    for name, lines in (("no batch", 0), (f"beside a batch of {options.lines:,} lines", options.lines)):
        with whole_stack() as running:
            if lines:
                with busy(running, lines, 0.1):
                    waits = _waits(running.url)
            else:
                waits = _waits(running.url)
        cuts = statistics.quantiles(waits, n=100, method="inclusive")
        print(
            f"{name:<34} time in queue p50 {cuts[49] * 1e3:.0f} ms, p95 {cuts[94] * 1e3:.0f} ms", flush=True
        )


def _waits(url: str, jobs: int = 100) -> list[float]:
    waits = []
    with httpx.Client(base_url=url, timeout=60) as client:
        for _ in range(jobs):
            record = client.post("/v1/jobs", json={"prompt": "hi"}, headers={"Prefer": "wait=30"}).json()
            waits.append(record["result"]["timing"]["queue_s"])
            time.sleep(0.05)
    return waits


BENCHMARKS: dict[str, Callable[[argparse.Namespace], None]] = {
    "large": large,
    "submit": submit,
    "interactive": interactive,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), default=list(BENCHMARKS))
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--jobs", type=int, default=4000)
    options = parser.parse_args()
    for name in options.only:
        print(f"== {name}", flush=True)
        BENCHMARKS[name](options)


if __name__ == "__main__":
    main()
