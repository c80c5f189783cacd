"""What llama.cpp itself needs for a step: its own `llama-batched-bench`, which decodes and samples nothing.

The tool is no dependency: build it from the llama.cpp that llama-cpp-python's source carries.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from common.processor import usable_cores
from tests.benchmarks import common
from tests.benchmarks.baselines.llama_server import OPENMP_DEFAULT

# As the engine computes: a stream for each request, flash attention, an F16 cache.
LIKE_OURS = ["--no-kv-unified", "--flash-attn", "on", "--cache-type-k", "f16", "--cache-type-v", "f16"]


def step_ms(tool: Path, model: Path, requests: int, cells: int, steps: int, stream_cells: int) -> float:
    """Milliseconds of a call with a row of each request, the mean of `steps`: in the last one, each row
    attends to `cells` cells.

    stream_cells: size of each stream. The prompt is computed once and copied. Raises ToolFailed.
    """
    threads = str(usable_cores())
    command = [str(tool), "--model", str(model), "-c", str(requests * stream_cells), *LIKE_OURS]
    command += ["-t", threads, "-tb", threads, "--output-format", "jsonl", "-pps"]
    command += ["-npp", str(cells - steps), "-ntg", str(steps), "-npl", str(requests)]
    ended = subprocess.run(
        command,
        env={**os.environ, **OPENMP_DEFAULT},
        capture_output=True,
        text=True,
        errors="replace",
    )
    asked = {"pp": cells - steps, "tg": steps, "pl": requests}
    for line in ended.stdout.splitlines():
        if line.startswith("{"):
            found = json.loads(line)
            if found.items() >= asked.items():
                return round(float(found["t_tg"]) / steps * 1e3, 3)
    said = common.last_words(ended.stderr or ended.stdout)
    raise common.ToolFailed(f"{tool.name} ended with {ended.returncode} and measured nothing: {said}")
