"""`medusaq bench decode` over the default model, as shipped and in Q4_0: plain decoding beside drafts."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from engine.weights.quantise import requantise
from tests.benchmarks.common import ToolFailed, last_words
from tests.support.measuring.report import Report, Rows
from tests.support.workers import ROOT

FORMAT = "q4_0"  # has a fast kernel for several rows, which the format of the default model has not
COLUMNS = ("requests", "prompts", "of them", "plain, tokens/s", "drafted", "ratio", "at least")
REQUESTS = "1,2,4,8,16"


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("of `decode`")
    group.add_argument("--decode-requests", default=REQUESTS, help=f"at once (default: {REQUESTS})")


def measure(options: argparse.Namespace, report: Report) -> None:
    """Two tables. Raises ToolFailed."""
    with tempfile.TemporaryDirectory(prefix="medusaq-bench-") as folder:
        made = Path(folder) / f"{options.model.stem.split('.')[0]}.{FORMAT.upper()}.gguf"
        requantise(str(options.model), str(made), FORMAT)
        for name, model in ((f"decode-{FORMAT}", made), ("decode", options.model)):
            with report.table(name, *COLUMNS, "tokens a step", model=model.name) as table:
                _fill(table, model, options, Path(folder) / "rows.json")


def _fill(table: Rows, model: Path, options: argparse.Namespace, rows: Path) -> None:
    command = [sys.executable, "-m", "cli", "bench", "decode", "--model", str(model), "--json", str(rows)]
    command += ["--requests", options.decode_requests, "--max-tokens", str(options.max_tokens)]
    command += ["--prompts", str(options.prompts)] if options.prompts.is_file() else []
    command += ["--limit", str(options.limit)] if options.limit else []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolFailed(f"medusaq bench decode ended with {done.returncode}: {last_words(done.stderr)}")
    found: list[dict[str, Any]] = json.loads(rows.read_text(encoding="utf-8"))
    for row in found:
        table.row(
            row["requests"],
            row["category"],
            row["n_prompts"],
            *(f"{row[name]:.1f}" for name in ("plain_tokens_per_s", "tokens_per_s")),
            *(f"{row[name]:.2f}" for name in ("ratio", "ratio_low", "tokens_per_step")),
        )
