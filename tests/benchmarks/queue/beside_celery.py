"""Lines of a batch and jobs over HTTP a second beside Celery alone, whose tasks do nothing."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from celery import Celery

from tests.benchmarks.queue.batch_client import client_of, start
from tests.benchmarks.queue.large_batch import PROMPT, wait
from tests.benchmarks.queue.queue_overhead import (
    BURST_JOBS,
    CONNECTIONS,
    WARM_UP_JOBS,
    BenchmarkFailed,
    drive,
    whole_stack,
)
from tests.support.measuring.report import Report, spread
from tests.support.servers import RedisServer
from tests.support.workers import ROOT

TASK, QUEUE = "nothing", "celery"
NATURAL = "Celery alone, tasks that do nothing"
WARM_UP = 100
LOOK_S = 0.02
LIMIT_S = 300.0
THREADS = 20  # as many as a model worker of 16 slots has jobs at once


def make_app(url: str) -> Celery:
    app = Celery("alone", broker=url)
    app.conf.update(task_ignore_result=True, task_acks_late=True, worker_hijack_root_logger=False)
    return app


def celery_alone(tasks: int) -> float:
    """Tasks a second from the first that is sent to the last acknowledged one; sent while they run.

    Raises BenchmarkFailed.
    """
    with tempfile.TemporaryDirectory(prefix="medusaq-bench-") as name:
        server = RedisServer(Path(name) / "redis")
        server.start()
        worker = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, server.url],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with make_app(server.url) as app:
                _send_and_wait(app, WARM_UP, worker)
                began = time.perf_counter()
                _send_and_wait(app, tasks, worker)
                return tasks / (time.perf_counter() - began)
        finally:
            worker.terminate()
            worker.wait(30)
            server.stop()


def _send_and_wait(app: Celery, tasks: int, worker: subprocess.Popen[bytes]) -> None:
    with app.producer_pool.acquire(block=True) as producer:
        for _ in range(tasks):
            app.send_task(TASK, producer=producer)
        client = producer.connection.default_channel.client
        give_up = time.monotonic() + LIMIT_S
        while client.llen(QUEUE) or client.hlen("unacked"):
            if time.monotonic() > give_up or worker.poll() is not None:
                raise BenchmarkFailed(f"Celery has not run {tasks} tasks within {LIMIT_S:g} s")
            time.sleep(LOOK_S)


def beside_celery(options: argparse.Namespace, report: Report) -> None:
    """Medians, and the ratios of each round."""
    found: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        found.setdefault(NATURAL, []).append(celery_alone(options.jobs))
        found.setdefault("lines of a batch", []).append(_lines_per_s(options.lines))
        found.setdefault(f"jobs over {CONNECTIONS} connections", []).append(_jobs_per_s())
    with report.table("celery", "what runs", "a second", "to Celery alone") as table:
        for name, rates in found.items():
            ratios = [rate / natural for rate, natural in zip(rates, found[NATURAL], strict=True)]
            table.row(name, spread(rates, 0), spread(ratios, 2))
        table.note(f"Batches of {options.lines:,} lines.")


def _lines_per_s(lines: int) -> float:
    with whole_stack() as running:
        client = client_of(running)
        return lines / wait(client, start(client, [PROMPT] * lines)).all_s


def _jobs_per_s() -> float:
    with whole_stack() as running:
        return asyncio.run(drive(running.url, WARM_UP_JOBS, BURST_JOBS, CONNECTIONS)).jobs_per_s


def main() -> None:
    app = make_app(sys.argv[1])

    @app.task(name=TASK)  # type: ignore[untyped-decorator]  # Celery has no types
    def nothing() -> None:
        pass

    threads = ("--pool", "threads", "--concurrency", str(THREADS))
    app.worker_main(["worker", *threads, "--loglevel", "WARNING", "--without-mingle", "--without-gossip"])


if __name__ == "__main__":
    main()
