"""What llama.cpp itself needs for a step: its own `llama-batched-bench`, which decodes and samples nothing.

The tool is no dependency: build it from the llama.cpp that llama-cpp-python's source carries.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from common.processor import usable_cores
from tests.benchmarks import common
from tests.benchmarks.baselines.llama_server import OPENMP_DEFAULT

FLASH = ("on", "off")
NO_TENSOR = "^none$=CPU"  # an option by which the tool loads backends, and which does nothing else


@dataclass(frozen=True, slots=True)
class Times:
    """step_ms: of a call with a row of each request, the mean of all."""

    step_ms: float
    prompt_token_ms: float


def step_ms(tool: Path, model: Path, requests: int, cells: int, steps: int, stream_cells: int) -> float:
    """As Times has it, with flash attention or without, whichever is faster. Raises ToolFailed."""
    return min(
        times(tool, model, requests, cells, steps, stream_cells, flash=flash).step_ms for flash in FLASH
    )


def times(
    tool: Path,
    model: Path,
    requests: int,
    cells: int,
    steps: int,
    stream_cells: int,
    *,
    flash: str,
    kv_type: str = "f16",
    backend: Path | None = None,
) -> Times:
    """Of so many steps, in the last of which each row attends to `cells` cells of a stream of its own.

    stream_cells: size of each stream. The prompt is computed once and copied. backend: a library to load.
    Raises ToolFailed.
    """
    threads = str(usable_cores())
    command = [str(tool), "--model", str(model), "-c", str(requests * stream_cells), "--no-kv-unified"]
    command += ["--flash-attn", flash, "--cache-type-k", kv_type, "--cache-type-v", kv_type]
    command += ["-t", threads, "-tb", threads, "--output-format", "jsonl", "-pps"]
    command += ["-npp", str(cells - steps), "-ntg", str(steps), "-npl", str(requests)]
    environment = {**os.environ, **OPENMP_DEFAULT}
    if backend:
        environment["GGML_BACKEND_PATH"] = str(backend)
        command += ["--override-tensor", NO_TENSOR]
    ended = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
    )
    asked = {"pp": cells - steps, "tg": steps, "pl": requests}
    for line in ended.stdout.splitlines():
        if line.startswith("{"):
            found = json.loads(line)
            if found.items() >= asked.items():
                took = (float(found["t_tg"]) / steps * 1e3, float(found["t_pp"]) / (cells - steps) * 1e3)
                return Times(*(round(ms, 3) for ms in took))
    said = common.last_words(ended.stderr or ended.stdout)
    raise common.ToolFailed(f"{tool.name} ended with {ended.returncode} and measured nothing: {said}")
