"""The same prompts through the whole system: `medusaq run` against gateway, Redis, Celery and engine."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from engine import EngineConfig
from engine.base.config import AS_SHIPPED, AUTO
from tests.benchmarks.common import SLOTS, Throughput, cores
from tests.benchmarks.inference import engine
from tests.benchmarks.queue.queue_overhead import BenchmarkFailed, running_stack
from tests.support.workers import ROOT

ENGINE = "engine:load"
WARM_UP = 1  # a request before the clock starts, as the other runs have


def measure(
    model: Path, prompts: list[str], max_tokens: int, slots: int, weights: str = AUTO, **options: Any
) -> Throughput:
    """From starting the command to its results file; options: of whole_stack. Raises BenchmarkFailed."""
    with (
        tempfile.TemporaryDirectory(prefix="medusaq-bench-") as folder,
        running_stack(ENGINE, model=str(model), slots=slots, weights=weights, **options) as url,
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


def beside_engine(model: Path, prompts: list[str], max_tokens: int, pairs: int) -> None:
    """A batch through the whole system beside the engine alone, with one worker and with two.

    With two, each has its share of the cores and of the prompts; alone, both engines run at the same time.
    """
    for workers in (1, 2):
        threads = max(1, cores() // workers)
        ratios = []
        for _ in range(pairs):
            with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
                config = EngineConfig(model=str(model), slots=SLOTS, threads=threads, weights=AS_SHIPPED)
                parts = [prompts[part::workers] for part in range(workers)]
                alone = sum(
                    each.tokens_per_s
                    for each in pool.map(engine.measure, [config] * workers, parts, [max_tokens] * workers)
                )
            run = measure(model, prompts, max_tokens, SLOTS, AS_SHIPPED, workers=workers, threads=threads)
            whole = run.tokens_per_s
            ratios.append(whole / alone)
            print(f"{workers} workers: {whole:.1f} tokens/s, engines alone {alone:.1f}", flush=True)
        print(
            f"{workers} workers: a batch / the engine alone {median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f})",
            flush=True,
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
