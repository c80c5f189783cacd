"""What the queue costs: HTTP, Redis and Celery around an engine that answers at once.

    python -m tests.benchmarks.queue.queue_overhead

Every part is real but the engine: embedded server, gateway, model worker and io worker, each a process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import httpx

from tasks.base.settings import Settings
from tests.support.forking.forks import Process, start
from tests.support.servers import RedisServer, free_port
from tests.support.workers import ROOT, SCRIPTED, Workers, environment

SINGLE_JOBS = 300  # enough for a 99th percentile that is not the maximum
BURST_JOBS = 4000  # some seconds of work
WARM_UP_SHARE = 10  # a tenth as many go before them, as connections and threads are made
CONNECTIONS = 32
WARM_UP_JOBS = 20
START_LIMIT_S = 30.0
STOP_LIMIT_S = 15.0
REQUEST_LIMIT_S = 70.0  # above the longest wait that Prefer allows
READY_POLL_S = 0.1


class BenchmarkFailed(Exception):
    """A process did not come up, or a job did not succeed."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """From submitting a job to holding its result, one at a time; and the rate of many connections.

    jobs: how many ran in all.
    """

    p50_ms: float
    p95_ms: float
    p99_ms: float
    jobs_per_s: float
    connections: int
    jobs: int

    def line(self) -> str:
        return (
            f"submit to result: p50 {self.p50_ms:.1f} ms, p95 {self.p95_ms:.1f} ms, p99 {self.p99_ms:.1f} ms;"
            f" {self.jobs_per_s:.0f} jobs/s over {self.connections} connections"
        )


def measure(
    single_jobs: int = SINGLE_JOBS, burst_jobs: int = BURST_JOBS, connections: int = CONNECTIONS
) -> Overhead:
    """Start the stack, warm it up, measure, and stop it whatever happens. Raises BenchmarkFailed."""
    with running_stack() as url:
        return asyncio.run(drive(url, single_jobs, burst_jobs, connections))


@dataclass(frozen=True, slots=True)
class Running:
    """The whole system: the gateway's address, and the ids of processes."""

    url: str
    gateway_pid: int
    io_pid: int
    worker_pid: int
    redis: RedisServer
    settings: Settings
    workers: Workers

    def processes(self) -> dict[str, int]:
        """Process ids by what they are."""
        return {"gateway": self.gateway_pid, "io worker": self.io_pid, "model worker": self.worker_pid}


@contextlib.contextmanager
def running_stack(engine: str = SCRIPTED, **options: object) -> Iterator[str]:
    """Yields the gateway's address."""
    with whole_stack(engine, **options) as running:
        yield running.url


@contextlib.contextmanager
def whole_stack(engine: str = SCRIPTED, workers: int = 1, **options: object) -> Iterator[Running]:
    """The whole system, with so many model workers and settings from options, on free loopback ports."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="medusaq-bench-")))
        server = RedisServer(folder / "redis")
        stack.callback(server.stop)
        server.start()
        options = {"files": str(folder / "files"), **options}
        settings = Settings(_env_file=None, redis_url=server.url, port=free_port(), **options)  # type: ignore
        started = Workers(folder)
        stack.callback(started.close)
        model = [started.model(settings, engine=engine) for _ in range(workers)]
        io = started.io(settings)
        url, gateway = stack.enter_context(_gateway(settings, folder / "gateway.log"))
        yield Running(url, gateway, io.process.pid, model[0].process.pid, server, settings, started)


@contextlib.contextmanager
def _gateway(settings: Settings, log: Path) -> Iterator[tuple[str, int]]:
    """Its address and process id."""
    command = [sys.executable, "-m", "cli", "gateway"]
    with log.open("wb") as out:
        process = start(command, ROOT, environment(settings), stdout=out, stderr=out)
    try:
        url = f"http://{settings.host}:{settings.port}"
        _wait_until_ready(process, url, log)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(STOP_LIMIT_S)


def _wait_until_ready(process: Process, url: str, log: Path) -> None:
    give_up_at = time.monotonic() + START_LIMIT_S
    while process.poll() is None and time.monotonic() < give_up_at:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/readyz").status_code == httpx.codes.OK:
                return
        time.sleep(READY_POLL_S)
    raise BenchmarkFailed(f"the gateway did not come up:\n{log.read_text(errors='replace')}")


async def drive(url: str, single_jobs: int, burst_jobs: int, connections: int) -> Overhead:
    """Of a stack that runs: so many jobs, and others that warm it up. Raises BenchmarkFailed."""
    # A client that takes little of the cores which it shares with the system.
    connector, limit = aiohttp.TCPConnector(limit=connections), aiohttp.ClientTimeout(REQUEST_LIMIT_S)
    async with aiohttp.ClientSession(url, connector=connector, timeout=limit) as client:
        for _ in range(WARM_UP_JOBS):
            await _job(client)
        times_ms = [await _job(client) * 1000 for _ in range(single_jobs)]
        warm_up = burst_jobs // WARM_UP_SHARE
        await _burst(client, warm_up, connections)
        started = time.perf_counter()
        await _burst(client, burst_jobs, connections)
        burst_s = time.perf_counter() - started
    percentiles = statistics.quantiles(times_ms, n=100, method="inclusive")
    jobs = WARM_UP_JOBS + single_jobs + warm_up + burst_jobs
    return Overhead(
        percentiles[49], percentiles[94], percentiles[98], burst_jobs / burst_s, connections, jobs
    )


async def _burst(client: aiohttp.ClientSession, jobs: int, connections: int) -> None:
    remaining = iter(range(jobs))

    async def one_connection() -> None:
        for _ in remaining:
            await _job(client)

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(one_connection())


async def _job(client: aiohttp.ClientSession) -> float:
    """Submit one job and wait for its result in the same request. Seconds."""
    started = time.perf_counter()
    body = {"prompt": "echo this", "max_tokens": 1}
    async with client.post("/v1/jobs", json=body, headers={"Prefer": "wait=60"}) as response:
        record: dict[str, Any] = await response.json()
    elapsed_s = time.perf_counter() - started
    if response.status != httpx.codes.OK or record["status"] != "succeeded":
        raise BenchmarkFailed(f"a job did not succeed: {response.status} {record}")
    return elapsed_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=SINGLE_JOBS, help="jobs sent one at a time")
    parser.add_argument("--burst", type=int, default=BURST_JOBS, help="jobs sent over many connections")
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    arguments = parser.parse_args()
    print(measure(arguments.jobs, arguments.burst, arguments.connections).line())


if __name__ == "__main__":
    main()
