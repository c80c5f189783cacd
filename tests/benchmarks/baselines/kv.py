"""Flash attention on or off, and the number format of K and V, with our kernels and without.

All in llama.cpp's own benchmark, which loads them as a backend.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from statistics import median

from engine.llama.kernels import load_kernels
from tests.benchmarks.baselines.llama_batched_bench import Times, times
from tests.support.measuring.report import Report

STEPS = 16
WAYS = (("on", "f16"), ("off", "f16"), ("on", "bf16"), ("on", "q8_0"))  # without it V may not be quantised
POINTS = ((1, 256), (16, 256), (1, 2000), (16, 2000))  # requests and cells of each
SPARE = 256  # cells of a stream


def measure(options: argparse.Namespace, report: Report) -> None:
    """Raises ToolFailed."""
    kernels = load_kernels()
    sides: dict[str, Path | None] = {"llama.cpp's": None}
    if kernels.path:
        sides[f"ours, {kernels.variant}"] = kernels.path
    cases = list(product(sides, WAYS))
    found: dict[tuple[object, object], list[Times]] = {}
    for turn in range(options.pairs):
        for case, point in product(cases[:: 1 if turn % 2 else -1], POINTS):
            (side, (flash, kv_type)), (requests, cells) = case, point
            took = times(
                options.batched_bench,
                options.model,
                requests,
                cells,
                STEPS,
                cells + SPARE,
                flash=flash,
                kv_type=kv_type,
                backend=sides[side],
            )
            found.setdefault((case, point), []).append(took)
    at = (f"{requests} x {cells:,}" for requests, cells in POINTS)
    with report.table("kv", "kernels", "flash attention", "K and V", *at, "a prompt token") as table:
        for case in cases:
            side, (flash, kv_type) = case
            steps = (f"{median(each.step_ms for each in found[case, point]):.1f} ms" for point in POINTS)
            prompt = median(each.prompt_token_ms for each in found[case, POINTS[-1]])
            table.row(side, flash, kv_type.upper(), *steps, f"{prompt:.2f} ms")
        table.note(
            f"A step of so many requests x cells of each, and a token of a prompt of {POINTS[-1][1]:,}; "
            f"medians of {options.pairs} runs."
        )
