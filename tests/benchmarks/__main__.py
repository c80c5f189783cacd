"""The figures of docs/reference/measurements.md, side by side in one run.

python -m tests.benchmarks [--prompts FILE] [--server PATH/llama-server] [--imatrix PATH/llama-imatrix]
                           [--batched-bench PATH/llama-batched-bench] [--against CHECKOUT] [--only NAME ...]
                           [--json FOLDER]

With --json docs/pictures/measured, `throughput` and `cells` write what they measure for the charts that
`make pictures` draws.
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import fmean
from types import FrameType
from typing import Any

from docs.pictures.measured import cells as cells_chart
from docs.pictures.measured import throughput as throughput_chart
from docs.pictures.measured.throughput import Figures, System
from engine import EngineConfig, EngineError, SamplingParams
from engine.base.config import AS_SHIPPED, BF16
from engine.llama.model import Model
from engine.weights.format_selection import time_formats, unpacked
from engine.weights.importance_matrix import importance_of
from engine.weights.quantise import Importance, requantise
from tests.benchmarks.baselines import llama_cpp_python, llama_imatrix, llama_server, same_file
from tests.benchmarks.common import (
    OUTPUT_TOKENS,
    SLOTS,
    Throughput,
    ToolFailed,
    cores,
    default_model,
    folder,
    load_spec_bench,
    positive,
    program,
)
from tests.benchmarks.inference import cells as by_cells
from tests.benchmarks.inference import engine, long_prompts, schemas, structured
from tests.benchmarks.inference import lanes as against_earlier
from tests.benchmarks.large import comparison, on_paper
from tests.benchmarks.queue import queue_overhead, queued, streaming, tables
from tests.support.measuring.fidelity import agreement, divergence, log_probabilities
from tests.support.measuring.machine import commit, processor
from tests.support.workers import ROOT

SPEC_BENCH = ROOT.parent / "shared" / "data" / "spec_bench_dev.jsonl"
PAIRS = 5
ROUNDS = 3  # on a machine with neighbours, single runs differ by a tenth
NEED_PROMPTS = {"throughput", "batch", "ceiling", "invariance", "server", "lanes", "widened"}
LEFT_OUT = {"widened"}  # unless --only names them: they take hours
SERVER_PROMPTS = 24  # of `server` without --limit: one and a half for each slot
SHORT_ANSWER = 16  # tokens of each answer to a short input of `server`
EXAMPLES = ROOT / "examples" / "prompts.jsonl"


def main() -> None:
    signal.signal(signal.SIGTERM, _stop)
    options = _options()
    print(f"{processor()}, {cores()} cores; {options.model.name}\n")
    for name, run in BENCHMARKS.items():
        if name in options.only:
            print(f"== {name}", flush=True)
            if name in NEED_PROMPTS and not options.prompts.is_file():
                print(f"left out: there is no file {options.prompts}; give --prompts FILE", flush=True)
            else:
                try:
                    run(options)
                except (ToolFailed, EngineError) as failed:
                    raise SystemExit(f"error: {failed}") from None
            print(flush=True)


def _stop(signum: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)  # so that what was started is stopped, as after Ctrl-C


def throughput(options: argparse.Namespace) -> None:
    """Bulk tokens/s against the library's own loop, the engine alone, and llama-server."""
    model, tokens = options.model, options.max_tokens
    prompts = load_spec_bench(options.prompts, options.limit)
    config = EngineConfig(model=str(model), slots=SLOTS)
    serial = _show("(a) Llama, serial", llama_cpp_python.measure(model, prompts, tokens))
    alone, whole, theirs = [], [], []
    for _ in range(ROUNDS):
        alone.append(_show("(b) engine alone", engine.measure(config, prompts, tokens)))
        whole.append(_show("medusaq run", queued.measure(model, prompts, tokens, SLOTS)))
        if options.server:
            found = llama_server.measure(options.server, model, prompts, tokens, SLOTS)
            theirs.append(_show("(c) llama-server", found))
    _show("(b) weights as shipped", engine.measure(replace(config, weights=AS_SHIPPED), prompts, tokens))
    shipped = _show("run, weights as shipped", queued.measure(model, prompts, tokens, SLOTS, AS_SHIPPED))
    systems = [
        System("llama-cpp-python, one by one", False, [serial]),
        System("medusaq run", True, whole),
        System("medusaq run, weights as shipped", True, [shipped]),
    ]
    if options.server:
        systems.append(System(f"llama-server -np {SLOTS}", False, theirs))
    ours = fmean(whole)
    print(f"medusaq run / (a) {ours / serial:.2f}, / (b) {ours / fmean(alone):.3f}", end="")
    print(f", / (c) {ours / fmean(theirs):.2f}" if theirs else "")
    if options.json:
        _measured(options, len(prompts), systems).write(options.json / throughput_chart.FIGURES.name)


def _measured(options: argparse.Namespace, requests: int, systems: list[System]) -> Figures:
    rounded = [replace(each, tokens_per_s=[round(run, 1) for run in each.tokens_per_s]) for each in systems]
    return Figures(
        **_circumstances(options),
        requests=requests,
        output_tokens=options.max_tokens,
        systems=rounded,
    )


def _circumstances(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "processor": processor(),
        "cores": cores(),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "model": options.model.name,
    }


def ceiling(options: argparse.Namespace) -> None:
    """How much faster than one after the other any batching can be here, with the same prefill."""
    prompts = load_spec_bench(options.prompts, options.limit)
    prompt_tokens = engine.mean_prompt_tokens(options.model, prompts)
    print(f"{prompt_tokens:.0f} rows a prompt")
    for name, path in (("as shipped", options.model), ("in BF16", Path(unpacked(str(options.model))))):
        measured = engine.ceiling(path, round(prompt_tokens))
        print(
            f"{name}: prefill {measured.prefill_ms:.2f} ms a row, decode alone {measured.alone_ms:.2f} ms, ",
            end="",
        )
        print(f"with {SLOTS} rows {measured.together_ms:.2f} ms a token")
        for generated in (96, options.max_tokens):
            most = measured.ratio(prompt_tokens, generated)
            print(f"  at {generated} tokens a reply: at most {most:.2f} times", flush=True)


def batch(options: argparse.Namespace) -> None:
    """What the system around the engine takes from a batch."""
    prompts = load_spec_bench(options.prompts, options.limit)
    queued.beside_engine(options.model, prompts, options.max_tokens, options.pairs)


def weights(options: argparse.Namespace) -> None:
    """The number formats: how long calls take in each, and how far its outputs are from the exact ones."""
    model = str(options.model)
    models = [Model(model), Model(model, weights=unpacked(model))]
    names = ("as shipped", "in BF16")
    for name, timing in zip(names, time_formats(models, EngineConfig(model=model, slots=SLOTS)), strict=True):
        alone, together, prompt = (s * 1e3 for s in (timing.alone, timing.together, timing.prompt_token))
        print(
            f"{name}: one row {alone:.1f} ms, {SLOTS} rows {together:.1f} ms, a prompt token {prompt:.2f} ms"
        )
    texts = EXAMPLES.read_text(encoding="utf-8").splitlines()[::3]
    with tempfile.TemporaryDirectory(prefix="medusaq-bench-") as folder:
        exact_path = f"{folder}/exact.gguf"
        requantise(model, exact_path, "f16")  # which holds any value of a coarser format to 11 bits
        exact = log_probabilities(exact_path, *texts)
    for name, path in zip(names, (model, unpacked(model)), strict=True):
        found = log_probabilities(path, *texts)
        print(
            f"{name}: {divergence(exact, found):.1e} nats a token from F16, "
            f"the same likeliest token after {agreement(exact, found):.1%} of {len(exact)}"
        )


def importance(options: argparse.Namespace) -> None:
    """What an importance matrix does for formats of four bits, of examples and of a text of another kind."""
    model = str(options.model)
    lines = EXAMPLES.read_text(encoding="utf-8").splitlines()
    documents = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md")))
    with tempfile.TemporaryDirectory(prefix="medusaq-bench-") as name:
        folder = Path(name)
        exact_path, made, text = str(folder / "exact.gguf"), str(folder / "made.gguf"), folder / "text.txt"
        requantise(model, exact_path, "f16")
        matrices: dict[str, Importance | None] = {"no matrix": None}
        others = "\n".join(line for k, line in enumerate(lines) if k % 3)
        for kind, content in (("other examples", others), ("documents", documents[:60_000])):
            text.write_text(content, encoding="utf-8")
            theirs = options.imatrix and llama_imatrix.of_llama_cpp(options.imatrix, exact_path, text)
            ours = matrices[kind] = importance_of(exact_path, text)
            if theirs:
                print(f"{kind}, beside llama-imatrix: {llama_imatrix.compared(ours, theirs)}", flush=True)
        exact = log_probabilities(exact_path, *lines[::3])
        for format, (kind, matrix) in product(("q4_0", "iq4_nl"), matrices.items()):
            requantise(exact_path, made, format, importance=matrix)
            found = log_probabilities(made, *lines[::3])
            print(
                f"{format}, {kind}: {Path(made).stat().st_size / 1e6:.1f} MB, "
                f"{divergence(exact, found):.3f} nats a token from F16, "
                f"the same likeliest token after {agreement(exact, found):.1%} of {len(exact)}",
                flush=True,
            )


def sharing(options: argparse.Namespace) -> None:
    """A long instruction over many short inputs, with and without sharing its cells."""
    for name, on in (("prefix sharing on", True), ("prefix sharing off", False)):
        print(engine.measure_sharing(options.model, _long_instruction(), on).line(name), flush=True)


def invariance(options: argparse.Namespace) -> None:
    """The price of bit-identical results: many requests at once, and one alone."""
    prompts = load_spec_bench(options.prompts, min(options.limit or 48, 48))
    for weights, slots in product((AS_SHIPPED, BF16), (SLOTS, 1)):
        plain, exact = (
            _show(
                f"{weights}, {slots} slots, {'exact' if on else 'plain'}",
                engine.measure(
                    EngineConfig(model=str(options.model), weights=weights, slots=slots, batch_invariant=on),
                    prompts if slots > 1 else prompts[::6],
                    options.max_tokens,
                ),
            )
            for on in (False, True)
        )
        print(f"exact / plain {exact / plain:.2f}", flush=True)


def overhead(_options: argparse.Namespace) -> None:
    """HTTP, Redis and Celery around an engine that answers at once."""
    print(queue_overhead.measure().line())


def streams(_options: argparse.Namespace) -> None:
    """What streaming adds between the engine's token and the client's."""
    for added in streaming.measure():
        print(added.line(), flush=True)


def python(options: argparse.Namespace) -> None:
    """Python's share of a step at eight requests."""
    for name, sampling in (
        ("greedy", SamplingParams(max_tokens=400, ignore_eos=True)),
        ("top_p 0.9", SamplingParams(max_tokens=400, ignore_eos=True, temperature=0.8, top_p=0.9)),
    ):
        share, step_ms = engine.python_share(options.model, sampling)
        print(f"{name:<12} {share:.1%} of a step of {step_ms:.1f} ms", flush=True)


def attention(options: argparse.Namespace) -> None:
    """What the cells of other requests cost a decode step."""
    for name, path in (("as shipped", options.model), ("in BF16", Path(unpacked(str(options.model))))):
        for count, ms in engine.foreign_cells(path, (0, 3000, 6000)).items():
            print(f"{name}: {SLOTS} rows beside {count:4} foreign cells: {ms:.1f} ms", flush=True)


def cells(options: argparse.Namespace) -> None:
    """Step time by cells of each request, beside llama.cpp's own decode calls."""
    if options.batched_bench is None:
        print("left out: give --batched-bench with the program of llama.cpp", flush=True)
        return
    requests, lengths = by_cells.REQUESTS, by_cells.CELLS
    steps = by_cells.Steps(options.model, max(requests), max(lengths))
    print(f"{max(requests)} slots, kv_cells {steps.kv_cells}: lanes of {steps.lane_cells} cells", flush=True)
    points = []
    for point in by_cells.measure(
        steps, options.batched_bench, options.model, options.pairs, requests, lengths
    ):
        print(point.line(), flush=True)
        points.append(point)
    if options.json:
        figures = cells_chart.Figures(
            **_circumstances(options), steps=by_cells.STEPS, kv_cells=steps.kv_cells, points=points
        )
        figures.write(options.json / cells_chart.FIGURES.name)


def server(options: argparse.Namespace) -> None:
    """Many requests at once, against llama-server with as many slots and the same file."""
    if options.server is None:
        print("left out: give --server with a llama-server binary", flush=True)
        return
    prompts = load_spec_bench(options.prompts, options.limit or SERVER_PROMPTS)
    distinct = same_file.Load("different prompts", prompts, options.max_tokens)
    shared = same_file.Load("one instruction", engine.short_inputs(_long_instruction()), SHORT_ANSWER)
    for format in options.formats:
        same_file.measure(options.server, options.model, format, distinct, options.pairs)
    if AS_SHIPPED in options.formats:
        same_file.measure(options.server, options.model, AS_SHIPPED, shared, options.pairs)


def lanes(options: argparse.Namespace) -> None:
    """Many requests at once, against the engine of an earlier checkout."""
    if options.against is None:
        print(
            "left out: give --against with a checkout of an earlier commit, such as a git worktree",
            flush=True,
        )
        return
    prompts = load_spec_bench(options.prompts, options.limit)
    against_earlier.measure(
        options.against, prompts, options.max_tokens, options.weights, options.slots, options.pairs
    )


BENCHMARKS: dict[str, Callable[[argparse.Namespace], None]] = {
    "throughput": throughput,
    "batch": batch,
    "weights": weights,
    "importance": importance,
    "ceiling": ceiling,
    "sharing": sharing,
    "invariance": invariance,
    "overhead": overhead,
    "streams": streams,
    "python": python,
    "attention": attention,
    "cells": cells,
    "server": server,
    "lanes": lanes,
    "schemas": lambda options: schemas.measure(options.model),
    "structured": lambda options: structured.measure(options.model),
    "long-prompts": lambda options: long_prompts.measure(options.model),
    "tables": lambda _: tables.measure(),
    "widened": comparison.run,
    "on-paper": on_paper.run,
}


def _show(name: str, measured: Throughput) -> float:
    print(measured.line(name), flush=True)
    return measured.tokens_per_s


def _long_instruction() -> str:
    """The system instruction that most example prompts share: about 400 tokens."""
    lines = [json.loads(line) for line in EXAMPLES.read_text(encoding="utf-8").splitlines()]
    messages = [
        m for line in lines for m in line.get("body", {}).get("messages", ()) if m["role"] == "system"
    ]
    return str(max((m["content"] for m in messages), key=len))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    several = "`server`, `cells`, `lanes` and `batch`"
    parser.add_argument("--model", type=Path, default=default_model(), help="a GGUF")
    parser.add_argument("--prompts", type=Path, default=SPEC_BENCH, help="a file in the format of Spec-Bench")
    parser.add_argument("--limit", type=positive, help="take only so many prompts, evenly spread")
    parser.add_argument("--max-tokens", type=positive, default=OUTPUT_TOKENS)
    parser.add_argument("--server", type=program, help="a llama-server binary to compare with")
    parser.add_argument("--imatrix", type=program, help="a llama-imatrix binary to compare with")
    parser.add_argument("--batched-bench", type=program, help="a llama-batched-bench binary to compare with")
    parser.add_argument("--json", type=folder, help="a folder for what `throughput` and `cells` measure")
    parser.add_argument("--against", type=Path, help="an earlier checkout, for `lanes`")
    formats = [BF16, AS_SHIPPED]
    parser.add_argument("--weights", nargs="+", choices=formats, default=formats, help="for `lanes`")
    parser.add_argument(
        "--slots", nargs="+", type=positive, default=against_earlier.SLOTS, help="for `lanes` (default: all)"
    )
    parser.add_argument(
        "--formats",
        nargs="+",
        choices=same_file.FORMATS,
        default=same_file.FORMATS,
        help="of the files of `server`",
    )
    parser.add_argument(
        "--pairs", type=positive, default=PAIRS, help=f"of runs, in {several} (default: {PAIRS})"
    )
    most = [name for name in BENCHMARKS if name not in LEFT_OUT]
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), default=most)
    comparison.add_options(parser)
    on_paper.add_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
