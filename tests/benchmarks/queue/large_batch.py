"""One file of many lines, from the upload to the output: time, and what each process takes."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import openai
import redis

from docs.measured.million import Run
from tasks.records.batch import ENDED
from tests.benchmarks.common import ToolFailed, last_words
from tests.benchmarks.queue.batch_client import client_of, start
from tests.benchmarks.queue.process_usage import MB, Watch
from tests.benchmarks.queue.queue_overhead import BenchmarkFailed, whole_stack
from tests.support.measuring.report import Report, spread
from tests.support.measuring.revision import commit
from tests.support.workers import ROOT

PROMPT = "x" * 200  # the answer repeats it
POLL_S = 0.1
SAMPLE_S = 1.0
TIMEOUT_S = 1200.0
FIRST, ALL = "first result after ", "output complete and in order after "  # earlier checkouts print them, too


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds since the batch was created."""

    first_s: float
    validated_s: float
    all_s: float


def large(options: argparse.Namespace, report: Report) -> None:
    """With --against: this checkout and that one in turns."""
    if options.against:
        _beside(options.against, options.lines, options.rounds, report)
        return
    with whole_stack() as running, Watch(running.processes(), running.redis.port) as watch:
        client = client_of(running)
        began = time.perf_counter()
        batch = start(client, [PROMPT] * options.lines)
        uploaded_s = time.perf_counter() - began
        watch.begin()
        taken = wait(client, batch)
        used = watch.seconds()
        output = client.files.content(client.batches.retrieve(batch.id).output_file_id).read().splitlines()
        if [json.loads(entry)["custom_id"] for entry in output] != [f"id-{n}" for n in range(options.lines)]:
            raise BenchmarkFailed("the output is not complete, or not in order")
    print(f"{options.lines:,} lines: uploaded in {uploaded_s:.1f} s, then")
    print(f"{FIRST}{taken.first_s:.1f} s,")
    print(f"all validated and recorded after {taken.validated_s:.1f} s,")
    print(f"{ALL}{taken.all_s:.1f} s: {options.lines / taken.all_s:,.0f} lines/s")
    with report.table("large", "of the batch", "time") as table:
        table.row("uploaded", f"{uploaded_s:.1f} s")
        table.row("first result, after create", f"{taken.first_s:.1f} s")
        table.row("all validated and recorded", f"{taken.validated_s:.1f} s")
        table.row("output complete and in order", f"{taken.all_s:.1f} s")
        table.note(
            f"{options.lines:,} lines with prompts and answers of {len(PROMPT)} bytes: "
            f"{options.lines / taken.all_s:,.0f} lines/s."
        )
    with report.table("large-processes", "process", "processor time a line", "memory at most") as table:
        for name, seconds in used.items():
            table.row(name, f"{seconds / options.lines * 1e3:.3f} ms", f"{watch.peaks[name] / MB:.0f} MB")
        table.row("together", f"{sum(used.values()) / options.lines * 1e3:.3f} ms", "")


def wait(client: openai.OpenAI, batch: openai.types.Batch) -> Taken:
    """Until it is completed. Raises BenchmarkFailed if it ends otherwise."""
    created = time.perf_counter()
    first = validated = 0.0
    while batch.status not in ENDED:
        time.sleep(POLL_S)
        batch = client.batches.retrieve(batch.id)
        now = time.perf_counter() - created
        if not first and batch.request_counts and batch.request_counts.completed:
            first = now
        if not validated and batch.status != "validating":
            validated = now
        if now > TIMEOUT_S:
            raise BenchmarkFailed(f"not done after {TIMEOUT_S} s: {batch}")
    if batch.status != "completed":
        raise BenchmarkFailed(f"{batch}")
    return Taken(first, validated, time.perf_counter() - created)


def million(options: argparse.Namespace, report: Report) -> None:
    """A file of many lines through `medusaq run`: lines ended, and memory of each process, over time."""
    lines = options.many
    with (
        tempfile.TemporaryDirectory(prefix="medusaq-bench-") as name,
        whole_stack() as running,
        redis.Redis(port=running.redis.port) as server,
    ):
        source = Path(name) / "lines.jsonl"
        with source.open("w", encoding="utf-8") as file:
            for number in range(lines):
                file.write(json.dumps({"prompt": f"{number} {PROMPT}", "max_tokens": 1}) + "\n")
        output = Path(name) / "out.jsonl"
        command = [sys.executable, "-m", "cli", "run", str(source), "-o", str(output), "--url", running.url]
        began = time.perf_counter()
        ran = subprocess.Popen([*command, "--no-progress"], cwd=ROOT)
        at_s, ended = list[float](), list[int]()
        memory: dict[str, list[int]] = {}
        with Watch({**running.processes(), "medusaq run": ran.pid}, running.redis.port) as watch:
            while ran.poll() is None:
                at_s.append(round(time.perf_counter() - began, 2))
                ended.append(sum(map(int, server.hvals(f"{running.settings.key_prefix}ended"))))
                for process, size in watch.memory().items():
                    memory.setdefault(process, []).append(size)
                time.sleep(SAMPLE_S)
        wall_s = time.perf_counter() - began
        if ran.returncode:
            raise BenchmarkFailed(f"medusaq run ended with {ran.returncode}")
        with output.open("rb") as results:
            if (found := sum(1 for _ in results)) != lines:
                raise BenchmarkFailed(f"{found} results of {lines} lines")
    run = Run(lines=lines, wall_s=round(wall_s, 1), at_s=at_s, ended=ended, memory=memory)
    tenth = next((at for at, count in enumerate(ended) if count >= lines / 10), -1)
    with report.table("million", "process", "memory after a tenth of the lines", "at most") as table:
        for process, sizes in memory.items():
            table.row(process, *(f"{size / MB:.0f} MB" for size in (sizes[tenth], max(sizes))))
        table.note(f"{run.summary()}.")
        table.data.update(asdict(run))


def _beside(against: Path, lines: int, pairs: int, report: Report) -> None:
    runs = [(_run(against, lines), _run(ROOT, lines)) for _ in range(pairs)]
    kinds: tuple[tuple[str, int, Callable[[dict[str, float]], float]], ...] = (
        ("lines/s", 0, lambda run: lines / run[ALL]),
        ("s to the first result", 1, lambda run: run[FIRST]),
    )
    with report.table("large-against", "a batch", "before", "now", "ratio", keep=False) as table:
        for what, digits, of in kinds:
            sides = (spread([of(run[side]) for run in runs], digits) for side in (0, 1))
            table.row(what, *sides, spread([of(new) / of(old) for old, new in runs], 2))
        table.note(f"Before: commit {commit(against)}. {lines:,} lines.")


def _run(checkout: Path, lines: int) -> dict[str, float]:
    """The seconds that this benchmark prints in a checkout. Raises ToolFailed."""
    command = [sys.executable, "-m", "tests.benchmarks.batches", "--only", "large", "--lines", str(lines)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    ran = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise ToolFailed(f"{checkout}: {last_words(ran.stderr)}")
    rows = ran.stdout.splitlines()
    return {
        mark: float(row.removeprefix(mark).split()[0])
        for mark in (FIRST, ALL)
        for row in rows
        if row.startswith(mark)
    }
