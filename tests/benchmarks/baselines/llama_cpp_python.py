"""The same GGUF through llama-cpp-python's own `Llama`, one request after the other, greedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llama_cpp import Llama

from common.processor import usable_cores
from tests.benchmarks import common
from tests.benchmarks.baselines.llama_server import OPENMP_DEFAULT
from tests.benchmarks.common import Throughput, ToolFailed
from tests.support.workers import ROOT


def measure(model: Path, prompts: list[str], max_tokens: int) -> Throughput:
    """Loading and one warm-up request are not counted. Raises ToolFailed.

    In a process of its own, where threads wait as OpenMP has it by default, and not as in our engine.
    """
    ran = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.baselines.llama_cpp_python"],
        input=json.dumps({"model": str(model), "prompts": prompts, "max_tokens": max_tokens}),
        cwd=ROOT,
        env={**os.environ, **OPENMP_DEFAULT},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise ToolFailed(f"llama-cpp-python: {common.last_words(ran.stderr)}")
    return Throughput(**json.loads(ran.stdout.splitlines()[-1]))


def _measure(model: str, prompts: list[str], max_tokens: int) -> Throughput:
    llama = Llama(
        model,
        n_ctx=common.context_needed(Path(model), prompts, max_tokens),
        # Left alone, the library decodes on half the cores: an unfair baseline.
        n_threads=usable_cores(),
        n_threads_batch=usable_cores(),
        verbose=False,
    )
    try:
        _complete(llama, common.WARM_UP_PROMPT, common.WARM_UP_TOKENS)
        started = time.perf_counter()
        usages = [_complete(llama, prompt, max_tokens) for prompt in prompts]
        wall_s = time.perf_counter() - started
    finally:
        llama.close()
    return Throughput(
        requests=len(usages),
        prompt_tokens=sum(usage["prompt_tokens"] for usage in usages),
        generated_tokens=sum(usage["completion_tokens"] for usage in usages),
        wall_s=wall_s,
    )


def _complete(llama: Llama, prompt: str, max_tokens: int) -> dict[str, int]:
    completion: Any = llama.create_chat_completion(
        messages=[{"role": "user", "content": prompt}],
        max_tokens=max_tokens,
        temperature=0.0,
        repeat_penalty=1.0,
    )
    usage: dict[str, int] = completion["usage"]
    return usage


if __name__ == "__main__":
    print(json.dumps(asdict(_measure(**json.load(sys.stdin)))))
