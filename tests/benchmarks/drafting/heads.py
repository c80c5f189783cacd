"""What heads cost: `python -m tests.benchmarks.drafting.heads`.

Random weights; their time is that of any others.

A plain step of the model comes before each call, as it does where heads draft: it empties the caches of
weights and code, and without it heads seem to take a third of what they do. With --write FILE the random
heads are written instead, for `medusaq bench decode --heads FILE`: what useless heads cost a whole run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from common.processor import usable_cores
from engine import EngineConfig
from engine.base.request import Request, SamplingParams
from engine.core.layouts import Layout
from engine.core.sequence import SequenceState
from engine.core.token_tree import Tree
from engine.llama.model import default_model_path
from engine.medusa.loader import load_heads
from engine.medusa.medusa_source import Heads, HeadSource
from engine.medusa.onnx.format import BITS
from tests.engine.core.test_layouts import lane_layout
from tests.engine.helpers.drive import opened
from tests.engine.helpers.float_heads import GivenRows
from tests.support.measuring.report import Report, add_record, shown_command
from training.heads.recipe import Kind

REPEATS = 40
WARM_UP = 5  # calls that are not counted
TOP = 4
ROWS = (1, 4, 16)
CHAIN, TREE = "a chain of three for each", "a tree of eight nodes for each"


def write_random_heads(path: Path, width: int, vocabulary: int, heads: int, kind: Kind) -> None:
    """Heads of two layers, as the packaged ones, over a shared lm_head cut to `vocabulary` rows."""
    generator = torch.Generator().manual_seed(0)
    state = {"token_map": torch.arange(vocabulary, dtype=torch.int32)}
    for head in range(heads):
        first = (2 + head) * width if kind is Kind.HYDRA else width
        for layer, inputs in enumerate((first, width)):
            state[f"{head}.{layer}.linear.weight"] = torch.randn(width, inputs, generator=generator) * 0.02
            state[f"{head}.{layer}.linear.bias"] = torch.zeros(width)
    save_file(state, path)


def random_heads(width: int, vocabulary: int, heads: int, kind: Kind, threads: int) -> dict[str, Heads]:
    """The same over a random lm_head, by bits and threads."""
    rng = np.random.default_rng(0)
    rows, embeddings = (
        (rng.standard_normal((count, width)) * 0.1).astype(np.float32)
        for count in (vocabulary, 2 * vocabulary)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "heads.safetensors"
        write_random_heads(path, width, vocabulary, heads, kind)

        def load(bits: int, threads: int) -> Heads:
            return load_heads(
                str(path),
                width=width,
                vocab_size=2 * vocabulary,
                model_rows=GivenRows(rows, embeddings),
                threads=threads,
                bits=bits,
            )

        counts = sorted({1, threads})
        return {f"int{bits}, {count}": load(bits, count) for bits in BITS for count in counts}


def plain_steps(model: str) -> Callable[[], float]:
    """A function that runs one more step of a single request, and returns its milliseconds."""
    engine = opened(EngineConfig(model=model, slots=1, prefix_sharing=False))
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


def median_ms(calls: Mapping[str, Callable[[], object]], step: Callable[[], float]) -> dict[str, float]:
    """Milliseconds of each call after a step of the model; in turns, so that all meet the same machine."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(REPEATS + WARM_UP):
        for name, call in calls.items():
            step()
            started = time.perf_counter()
            call()
            if i >= WARM_UP:
                times[name].append((time.perf_counter() - started) * 1e3)
    return {name: statistics.median(taken) for name, taken in times.items()}


def running(hidden: NDArray[np.float32], layout: Layout | None) -> list[SequenceState]:
    """Sequences with these states."""
    sequences = []
    for state in hidden:
        request = Request(id="-", prompt="-", sampling=SamplingParams(max_tokens=8))
        sequences.append(SequenceState(request, np.zeros(4, dtype=np.int32), arrived=0.0))
        sequences[-1].hidden, sequences[-1].layout = state, layout
    return sequences


def draft(source: HeadSource, sequences: list[SequenceState], nodes: int) -> list[Tree]:
    """As many, however unlikely: all heads, one after the other."""
    source.min_path_probability = 0.0
    return source.draft(sequences, nodes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--vocabulary", type=int, default=6144)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kind", type=Kind, choices=list(Kind), default=Kind.HYDRA)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--model", default=default_model_path(), help="GGUF that runs in between")
    parser.add_argument("--write", type=Path, metavar="FILE", help="safetensors file")
    add_record(parser)
    options = parser.parse_args()
    sizes = options.width, options.vocabulary, options.heads, options.kind
    if options.write:
        write_random_heads(options.write, *sizes)
        return
    loaded = random_heads(*sizes, options.threads)
    sources = {name: HeadSource(heads, TOP) for name, heads in loaded.items()}
    step = plain_steps(options.model)
    step_ms = statistics.median(step() for _ in range(REPEATS))
    rng = np.random.default_rng(0)
    lanes = lane_layout()[0]
    tables: dict[str, dict[int, dict[str, float]]] = {"one head": {}, CHAIN: {}, TREE: {}}
    for count in ROWS:
        hidden = rng.standard_normal((count, options.width)).astype(np.float32)
        path = np.zeros((count, options.heads), dtype=np.int32)
        calls: dict[str, dict[str, Callable[[], object]]] = {
            "one head": {n: partial(h.propose, hidden, 1, TOP, path=path) for n, h in loaded.items()},
            CHAIN: {n: partial(draft, s, running(hidden, lanes), 3) for n, s in sources.items()},
            TREE: {n: partial(draft, s, running(hidden, None), 8) for n, s in sources.items()},
        }
        for title, rows in tables.items():
            rows[count] = median_ms(calls[title], step)
    command = shown_command("tests.benchmarks.drafting.heads", sys.argv[1:])
    report = Report(command, options.record, Path(options.model).name)
    with report.table("heads", "what is drafted", "rows", *loaded) as table:
        for title, rows in tables.items():
            for count, times in rows.items():
                shares = (f"{ms:.2f} ms ({ms / step_ms:.0%})" for ms in times.values())
                table.row(title, count, *shares)
        table.note(
            f"{options.heads} {options.kind} heads, width {options.width}, {options.vocabulary:,} draft "
            f"tokens; medians of {REPEATS} calls, each after a plain step of one row, which takes "
            f"{step_ms:.2f} ms, and in brackets the share of such a step. After a number format: the threads."
        )


if __name__ == "__main__":
    main()
