"""The same prompts through the whole system: `medusaq run` against gateway, Redis, Celery and engine."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from engine.base.config import AUTO
from tests.benchmarks.common import Throughput
from tests.benchmarks.queue.queue_overhead import BenchmarkFailed, running_stack
from tests.support.workers import ROOT

ENGINE = "engine:load"
WARM_UP = 1  # a request before the clock starts, as the other runs have


def measure(model: Path, prompts: list[str], max_tokens: int, slots: int, weights: str = AUTO) -> Throughput:
    """From starting the command to its results file. Raises BenchmarkFailed."""
    with (
        tempfile.TemporaryDirectory(prefix="medusaq-bench-") as folder,
        running_stack(ENGINE, model=str(model), slots=slots, weights=weights) as url,
    ):
        _run(url, ["Say hello."], 8, Path(folder) / "warm")
        started = time.perf_counter()
        results = _run(url, prompts, max_tokens, Path(folder) / "timed")
        wall_s = time.perf_counter() - started
    usages = [row["response"]["body"]["usage"] for row in results]
    return Throughput(
        len(usages),
        sum(u["prompt_tokens"] for u in usages),
        sum(u["completion_tokens"] for u in usages),
        wall_s,
    )


def _run(
    url: str, prompts: list[str], max_tokens: int, stem: Path
) -> list[dict[str, dict[str, dict[str, dict[str, int]]]]]:
    source, results = stem.with_suffix(".in.jsonl"), stem.with_suffix(".out.jsonl")
    source.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts), encoding="utf-8")
    command = [sys.executable, "-m", "cli", "run", str(source), "-o", str(results), "--url", url]
    done = subprocess.run(
        [*command, "--max-tokens", str(max_tokens), "--temperature", "0", "--no-progress"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BenchmarkFailed(f"medusaq run ended with {done.returncode}:\n{done.stderr}")
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
