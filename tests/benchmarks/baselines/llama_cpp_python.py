"""Baseline (a): the same GGUF through llama-cpp-python's own `Llama`, one request after the other, greedy.

python -m tests.benchmarks.baselines.llama_cpp_python --prompts spec_bench_dev.jsonl
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from llama_cpp import Llama

from tests.benchmarks import common
from tests.benchmarks.common import Throughput


def measure(model: Path, prompts: list[str], max_tokens: int = common.OUTPUT_TOKENS) -> Throughput:
    """Loading and one warm-up request are not counted."""
    llama = Llama(
        str(model),
        n_ctx=common.context_needed(model, prompts, max_tokens),
        # Left alone, the library decodes on half the cores: an unfair baseline.
        n_threads=common.cores(),
        n_threads_batch=common.cores(),
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


def main() -> None:
    arguments = common.parser(__doc__).parse_args()
    prompts = common.load_spec_bench(arguments.prompts, arguments.limit)
    model = arguments.model or common.default_model()
    print(measure(model, prompts, arguments.max_tokens).line("llama-cpp-python, serial"))


if __name__ == "__main__":
    main()
