"""Many requests at once: this engine beside that of another checkout, in pairs of runs that take turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tests.benchmarks.common import ToolFailed, last_words
from tests.support.workers import ROOT

SCRIPT = Path(__file__).with_name("bulk.py")
SLOTS = (1, 2, 4, 8, 16, 32)
LONG_PROMPT = "cedar " * 1000
MANY = 16  # requests from which a long prompt is sent beside the others


def measure(
    against: Path,
    prompts: Sequence[str],
    max_tokens: int,
    weights: Sequence[str],
    slots: Sequence[int],
    pairs: int,
) -> None:
    """Print tokens/s of both and the ratio, median (least to most) of so many pairs."""
    for one in weights:
        for many in slots:
            found = [
                (_run(against, prompts, many, one, max_tokens), _run(ROOT, prompts, many, one, max_tokens))
                for _ in range(pairs)
            ]
            for what in ("all", "decoding"):
                before, after = (median(run[side][what] for run in found) for side in (0, 1))
                ratios = [new[what] / old[what] for old, new in found]
                print(
                    f"{one:<10} {many:>2} slots, {what:<8} {before:6.1f} -> {after:6.1f} tokens/s, "
                    f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                    flush=True,
                )
            if many >= MANY:
                before, after = (median(run[side]["pause"] for run in found) for side in (0, 1))
                print(f"{one:<10} {many:>2} slots, longest pause {before * 1e3:.0f} -> {after * 1e3:.0f} ms")


def _run(
    checkout: Path, prompts: Sequence[str], slots: int, weights: str, max_tokens: int
) -> dict[str, float]:
    task = {
        "prompts": prompts[: max(len(prompts) // 4, 1)] if slots < MANY // 2 else prompts,
        "slots": slots,
        "weights": weights,
        "max_tokens": max_tokens,
        "long": LONG_PROMPT if slots >= MANY else "",
    }
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    ran = subprocess.run(
        [sys.executable, str(SCRIPT)],
        input=json.dumps(task),
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise ToolFailed(f"{checkout}: {last_words(ran.stderr)}")
    return dict(json.loads(ran.stdout))
