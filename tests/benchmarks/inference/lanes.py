"""Many requests at once: this engine beside that of another checkout, in pairs of runs that take turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from engine.base.config import AS_SHIPPED, BF16
from tests.benchmarks.common import ToolFailed, last_words
from tests.support.measuring.report import Report, Rows, spread
from tests.support.measuring.revision import commit
from tests.support.workers import ROOT

SCRIPT = Path(__file__).with_name("bulk.py")
SLOTS = (1, 2, 4, 8, 16, 32)
LONG_PROMPT = "cedar " * 1000
COLUMNS = (
    *("slots", "tokens/s before", "now", "ratio"),
    *("decoding, tokens/s before", "now", "ratio", "longest pause before", "now"),
)
MANY = 16  # requests from which a long prompt is sent beside the others


def measure(
    against: Path,
    prompts: Sequence[str],
    max_tokens: int,
    weights: Sequence[str],
    slots: Sequence[int],
    pairs: int,
    report: Report,
) -> None:
    """Tokens/s of both and the ratios of so many pairs."""
    if BF16 in weights:
        with report.table("lanes-bf16", *COLUMNS) as table:
            _rows(against, prompts, max_tokens, BF16, slots, pairs, table)
    if AS_SHIPPED in weights:
        with report.table("lanes-as-shipped", *COLUMNS) as table:
            _rows(against, prompts, max_tokens, AS_SHIPPED, slots, pairs, table)


def _rows(
    against: Path,
    prompts: Sequence[str],
    max_tokens: int,
    weights: str,
    slots: Sequence[int],
    pairs: int,
    table: Rows,
) -> None:
    for many in slots:
        found = [
            (
                _run(against, prompts, many, weights, max_tokens),
                _run(ROOT, prompts, many, weights, max_tokens),
            )
            for _ in range(pairs)
        ]
        cells = []
        for what in ("all", "decoding"):
            cells += [f"{median(run[side][what] for run in found):.1f}" for side in (0, 1)]
            cells += [spread([new[what] / old[what] for old, new in found], 2)]
        pauses = [median(run[side]["pause"] for run in found) * 1e3 for side in (0, 1)]
        table.row(many, *cells, *(f"{ms:.0f} ms" if many >= MANY else "-" for ms in pauses))
    table.note(
        f"Before: commit {commit(against)}. {len(prompts)} prompts, a quarter of them below {MANY // 2} "
        f"slots, at most {max_tokens} tokens each; drafts are off. Medians of {pairs} pairs."
    )


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
