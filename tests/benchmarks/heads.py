"""What heads cost: `python -m tests.benchmarks.heads`. Random weights; their time is that of any others.

A plain step of the model comes before each call, as it does where heads draft: it empties the caches of
weights and code, and without it heads seem to take a third of what they do. With --write FILE the random
heads are written instead, for `medusaq bench decode --heads FILE`: what useless heads cost a whole run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from engine import EngineConfig
from engine.context import usable_cores
from engine.draft import Tree
from engine.engine import Engine
from engine.head_source import HeadSource
from engine.heads import MedusaHeads
from engine.model import default_model_path
from engine.request import Request, SamplingParams
from engine.sequence import Sequence

REPEATS = 60
TOP = 4
ROWS = (1, 2, 4, 8, 16)


def write_random_heads(path: Path, width: int, vocabulary: int, heads: int) -> None:
    """Heads of one layer over a shared lm_head cut to `vocabulary` rows."""
    generator = torch.Generator().manual_seed(0)
    state = {"token_map": torch.arange(vocabulary, dtype=torch.int32)}
    for head in range(heads):
        state[f"{head}.0.linear.weight"] = torch.randn(width, width, generator=generator) * 0.02
        state[f"{head}.0.linear.bias"] = torch.zeros(width)
    save_file(state, path)


def random_heads(width: int, vocabulary: int, heads: int, threads: int) -> MedusaHeads:
    """The same over a random lm_head."""
    rows = (np.random.default_rng(0).standard_normal((vocabulary, width)) * 0.1).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "heads.safetensors"
        write_random_heads(path, width, vocabulary, heads)
        return MedusaHeads.load(
            str(path), width=width, vocab_size=2 * vocabulary, lm_head=lambda _: rows, threads=threads
        )


def plain_steps(model: str) -> Callable[[], float]:
    """A function that runs one more step of a single request, and returns its milliseconds."""
    engine = Engine(EngineConfig(model=model, slots=1, prefix_sharing=False))
    sampling = SamplingParams(max_tokens=256, ignore_eos=True)

    def step() -> float:
        if engine.idle:
            request = Request(id="-", prompt="Write a long story.", sampling=sampling)
            engine.add(engine.prepare(request, time.monotonic()))
            engine.step()
        started = time.perf_counter()
        engine.step()
        return (time.perf_counter() - started) * 1e3

    return step


def median_ms(call: Callable[[], object], step: Callable[[], float]) -> float:
    """Milliseconds of a call after a step of the model."""
    times = []
    for i in range(REPEATS + 5):
        step()
        started = time.perf_counter()
        call()
        if i >= 5:
            times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3


def running(hidden: NDArray[np.float32]) -> list[Sequence]:
    """Sequences with these states."""
    sequences = []
    for state in hidden:
        request = Request(id="-", prompt="-", sampling=SamplingParams(max_tokens=8))
        sequences.append(Sequence(request, np.zeros(4, dtype=np.int32), arrived=0.0))
        sequences[-1].hidden = state
    return sequences


def draft(source: HeadSource, sequences: list[Sequence], min_survival: float) -> list[Tree]:
    """All heads one after the other at 0, the first alone at anything over 1."""
    source.min_survival = min_survival
    return source.draft(sequences, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--vocabulary", type=int, default=6144)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--model", default=default_model_path(), help="GGUF that runs in between")
    parser.add_argument("--write", type=Path, metavar="FILE", help="safetensors file")
    options = parser.parse_args()
    if options.write:
        write_random_heads(options.write, options.width, options.vocabulary, options.heads)
        return
    heads = random_heads(options.width, options.vocabulary, options.heads, options.threads)
    step = plain_steps(options.model)
    rng = np.random.default_rng(0)
    print(
        f"{options.heads} heads, width {options.width}, draft vocabulary {options.vocabulary}, "
        f"{torch.get_num_threads()} threads; median ms of {REPEATS} calls, each after a plain step, "
        f"which takes {statistics.median(step() for _ in range(REPEATS)):.2f} ms"
    )
    print(f"{'rows':>4} {'head 0':>8} {'all at once':>12} {'draft, head 0':>14} {'draft, all':>11}")
    source = HeadSource(heads, TOP)
    for count in ROWS:
        hidden = rng.standard_normal((count, options.width)).astype(np.float32)
        sequences = running(hidden)
        calls: tuple[Callable[[], object], ...] = (
            partial(heads.propose, hidden, 1, TOP),
            partial(heads.propose, hidden, options.heads, TOP),
            partial(draft, source, sequences, 2.0),
            partial(draft, source, sequences, 0.0),
        )
        first, together, draft_first, draft_all = (median_ms(call, step) for call in calls)
        print(f"{count:>4} {first:>8.2f} {together:>12.2f} {draft_first:>14.2f} {draft_all:>11.2f}")


if __name__ == "__main__":
    main()
