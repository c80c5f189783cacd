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
from typing import Any

from common.processor import usable_cores
from engine import EngineConfig
from engine.base.config import AS_SHIPPED, AUTO
from tests.benchmarks.common import SLOTS, Throughput
from tests.benchmarks.inference import engine
from tests.benchmarks.queue.queue_overhead import BenchmarkFailed, running_stack
from tests.support.measuring.report import Report, spread
from tests.support.workers import ROOT

ENGINE = "engine:load"
SPAWN = multiprocessing.get_context("spawn")


def measure(
    model: Path,
    prompts: list[str],
    max_tokens: int,
    slots: int,
    weights: str = AUTO,
    ignore_eos: bool = False,
    **options: Any,
) -> Throughput:
    """From starting the command to its results file; options: of whole_stack. Raises BenchmarkFailed."""
    with (
        tempfile.TemporaryDirectory(prefix="medusaq-bench-") as folder,
        running_stack(ENGINE, model=str(model), slots=slots, weights=weights, **options) as url,
    ):
        _run(url, ["Say hello."], 8, Path(folder) / "warm")
        started = time.perf_counter()
        results = _run(url, prompts, max_tokens, Path(folder) / "timed", ignore_eos)
        wall_s = time.perf_counter() - started
    usages = [row["response"]["body"]["usage"] for row in results]
    return Throughput(
        len(usages),
        sum(u["prompt_tokens"] for u in usages),
        sum(u["completion_tokens"] for u in usages),
        wall_s,
    )


def beside_engine(model: Path, prompts: list[str], max_tokens: int, pairs: int, report: Report) -> None:
    """A batch through the whole system beside the engine alone, with one worker and with two.

    With two, each has its share of the cores and of the prompts; alone, both engines begin at the
    same moment, and are timed until the last of them ends.
    """
    found = {workers: _beside_engine(model, prompts, max_tokens, pairs, workers) for workers in (1, 2)}
    with report.table("batch", "workers", "a batch, tokens/s", "engines alone, tokens/s", "ratio") as table:
        for workers, (whole, alone) in found.items():
            ratios = [ours / theirs for ours, theirs in zip(whole, alone, strict=True)]
            table.row(workers, spread(whole), spread(alone), spread(ratios, 3))
        table.note(f"{len(prompts)} prompts, at most {max_tokens} tokens each, weights as shipped.")


def _beside_engine(
    model: Path, prompts: list[str], max_tokens: int, pairs: int, workers: int
) -> tuple[list[float], list[float]]:
    """Tokens/s of batches, and of engines alone."""
    whole, alone = list[float](), list[float]()
    threads = max(1, usable_cores() // workers)
    for _ in range(pairs):
        with multiprocessing.Manager() as manager, ProcessPoolExecutor(workers, SPAWN) as pool:
            config = EngineConfig(model=str(model), slots=SLOTS, threads=threads, weights=AS_SHIPPED)
            parts = [prompts[part::workers] for part in range(workers)]
            together = [manager.Barrier(workers).wait] * workers
            measured = pool.map(engine.measure, [config] * workers, parts, [max_tokens] * workers, together)
            runs = [*measured]
            alone.append(sum(run.generated_tokens for run in runs) / max(run.wall_s for run in runs))
        run = measure(model, prompts, max_tokens, SLOTS, AS_SHIPPED, workers=workers, threads=threads)
        whole.append(run.tokens_per_s)
        print(f"{workers} workers: {whole[-1]:.1f} tokens/s, engines alone {alone[-1]:.1f}", flush=True)
    return whole, alone


def _run(
    url: str, prompts: list[str], max_tokens: int, stem: Path, ignore_eos: bool = False
) -> list[dict[str, dict[str, dict[str, dict[str, int]]]]]:
    source, results = stem.with_suffix(".in.jsonl"), stem.with_suffix(".out.jsonl")
    rows = [{"prompt": prompt, "ignore_eos": ignore_eos} for prompt in prompts]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
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
