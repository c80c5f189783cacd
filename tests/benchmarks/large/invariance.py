"""What bit-identical results cost: many requests at once, and one alone."""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from engine import EngineConfig
from engine.base.config import AS_SHIPPED, BF16
from tests.benchmarks.common import SLOTS
from tests.benchmarks.inference import engine
from tests.benchmarks.large.shapes import Shape
from tests.benchmarks.large.widened import made
from tests.support.measuring.report import Report

SPAWN = multiprocessing.get_context("spawn")
WIDE = Shape(768, 12, 1536, 30)  # rows of 256, which K- and I-quants need
PAIRS = 3
WIDENED = ("q4_k_m", "q6_k", "iq4_xs")


def measure(model: Path, prompts: Sequence[str], max_tokens: int, report: Report) -> None:
    columns = ("weights", "requests at once", "tokens/s", "batch-invariant, tokens/s", "ratio")
    with (
        report.table("invariance", *columns) as table,
        tempfile.TemporaryDirectory(prefix="medusaq-bench-") as folder,
    ):
        models = {weights: (model, weights) for weights in (AS_SHIPPED, BF16)}
        for format in WIDENED:
            models[f"{format}, widened"] = made(model, Path(folder), WIDE, format), AS_SHIPPED
        for name, (path, weights) in models.items():
            for slots in (SLOTS, 1):
                configs = [
                    EngineConfig(model=str(path), weights=weights, slots=slots, batch_invariant=on)
                    for on in (False, True)
                ]
                asked = prompts if slots > 1 else prompts[::6]
                pairs = [[_tokens_per_s(c, asked, max_tokens) for c in configs] for _ in range(PAIRS)]
                plain, exact = (statistics.median(speeds) for speeds in zip(*pairs, strict=True))
                ratio = statistics.median(b / a for a, b in pairs)
                table.row(name, slots, f"{plain:.1f}", f"{exact:.1f}", f"{ratio:.2f}")
        table.note(f"Medians of {PAIRS} pairs.")
        table.note(f"Widened: with zeros, to {WIDE} (width, heads, feed forward, layers), for rows of 256.")


def _tokens_per_s(config: EngineConfig, prompts: Sequence[str], max_tokens: int) -> float:
    """In a process of its own, since llama.cpp chooses some kernels once for each process."""
    with ProcessPoolExecutor(1, SPAWN) as pool:
        return pool.submit(engine.measure, config, prompts, max_tokens).result().tokens_per_s
