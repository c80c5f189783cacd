"""The tables of docs/reference/benchmarks.md that one command can give, side by side in one run.

python -m tests.benchmarks [--prompts FILE] [--server PATH/llama-server] [--imatrix PATH/llama-imatrix]
                           [--batched-bench PATH/llama-batched-bench] [--against CHECKOUT] [--only NAME ...]
                           [--record [FILE]]

`python -m tests.benchmarks.all` runs these parts and those of the other commands, each by itself.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from cli.base.errors import CliError
from common.processor import usable_cores
from docs.measured import cells as cells_chart
from engine import EngineConfig, EngineError, SamplingParams
from engine.base.config import AS_SHIPPED, BF16
from engine.llama.model import default_model_path
from engine.weights.format_selection import open_model, unpacked
from tests.benchmarks import small_tasks
from tests.benchmarks.baselines import kv, llama_cpp_python, llama_server, same_file
from tests.benchmarks.common import (
    OUTPUT_TOKENS,
    SLOTS,
    SPEC_BENCH,
    Throughput,
    ToolFailed,
    load_spec_bench,
    positive,
    program,
)
from tests.benchmarks.drafting import decode, on_paper
from tests.benchmarks.inference import cells as by_cells
from tests.benchmarks.inference import engine, formats, long_prompts, schemas, structured
from tests.benchmarks.inference import lanes as against_earlier
from tests.benchmarks.large import comparison
from tests.benchmarks.large import invariance as invariant
from tests.benchmarks.large.shapes import parse_shape
from tests.benchmarks.large.widened import CannotWiden, made
from tests.benchmarks.queue import queue_overhead, queued, streaming, tables
from tests.support.measuring.report import (
    SCRIPTED_ENGINE,
    Report,
    add_record,
    measured_on,
    shown_command,
    spread,
)
from tests.support.measuring.sigterm import clean_up_on_sigterm

PAIRS = 5
ROUNDS = 3  # on a machine with neighbours, single runs differ by a tenth
NEED_PROMPTS = {"throughput", "batch", "ceiling", "invariance", "server", "lanes", "widened"}
NEED_BATCHED_BENCH = {"cells", "kv"}
LEFT_OUT = {"widened"}  # unless --only names them: they take hours
SERVER_PROMPTS = 24  # of `server` without --limit: one and a half for each slot
SHORT_ANSWER = 16  # tokens of each answer to a short input of `server`


def main() -> None:
    clean_up_on_sigterm()
    options = _options()
    print(f"{measured_on()}, {usable_cores()} cores; {options.model.name}\n")
    for name, run in BENCHMARKS.items():
        if name not in options.only:
            continue
        print(f"== {name}", flush=True)
        if name in NEED_PROMPTS and not options.prompts.is_file():
            print(f"left out: there is no file {options.prompts}; give --prompts FILE", flush=True)
            continue
        if name in NEED_BATCHED_BENCH and options.batched_bench is None:
            print("left out: give --batched-bench with the program of llama.cpp", flush=True)
            continue
        command = shown_command("tests.benchmarks", sys.argv[1:], only=name)
        if name in NEED_PROMPTS and "--prompts" not in command:
            command += f" --prompts {options.prompts.name}"
        try:
            run(options, Report(command, options.record, options.model.name))
        except (ToolFailed, CannotWiden, EngineError, CliError, queue_overhead.BenchmarkFailed) as failed:
            raise SystemExit(f"error: {failed}") from None
        print(flush=True)


def throughput(options: argparse.Namespace, report: Report) -> None:
    """Bulk tokens/s against the library's own loop, the engine alone, and llama-server."""
    model, tokens = options.model, options.max_tokens
    prompts = load_spec_bench(options.prompts, options.limit)
    config = EngineConfig(model=str(model), slots=SLOTS)
    open_model(config)  # measures the formats, once
    serial = [_show("llama-cpp-python", llama_cpp_python.measure(model, prompts, tokens))]
    alone, whole, theirs = list[float](), list[float](), list[float]()
    for _ in range(ROUNDS):
        alone.append(_show("the engine alone", engine.measure(config, prompts, tokens)))
        whole.append(_show("medusaq run", queued.measure(model, prompts, tokens, SLOTS)))
        if options.server:
            found = llama_server.measure(options.server, model, prompts, tokens, SLOTS)
            theirs.append(_show("llama-server", found))
    shipped = [_show("weights as shipped", queued.measure(model, prompts, tokens, SLOTS, AS_SHIPPED))]
    found = engine.measure(replace(config, weights=AS_SHIPPED), prompts, tokens)
    alone_shipped = [_show("the engine, as shipped", found)]
    systems = {
        "llama-cpp-python, one by one": serial,
        f"llama-server -np {SLOTS}": theirs,
        "medusaq run": whole,
        "medusaq run, weights as shipped": shipped,
        "the engine alone": alone,
        "the engine alone, weights as shipped": alone_shipped,
    }
    with report.table("throughput", "system", "tokens/s", "medusaq run, to it") as table:
        for name, speeds in systems.items():
            if speeds:
                table.row(name, spread(speeds), f"{median(whole) / median(speeds):.2f}")
        table.note(f"{len(prompts)} prompts, at most {tokens} tokens each.")


def ceiling(options: argparse.Namespace, report: Report) -> None:
    """How much faster than one after the other any batching can be here, with the same prefill."""
    prompts = load_spec_bench(options.prompts, options.limit)
    prompt_tokens = engine.mean_prompt_tokens(options.model, prompts)
    generated = (96, options.max_tokens)
    columns = ("weights", "prefill, a row", "decoding alone, a token", f"with {SLOTS} rows, a token")
    at_most = (f"at {tokens} tokens a reply, at most" for tokens in generated)
    with report.table("ceiling", *columns, *at_most) as table:
        for name, path in (("as shipped", options.model), ("in BF16", Path(unpacked(str(options.model))))):
            found = engine.ceiling(path, round(prompt_tokens))
            times = (f"{ms:.2f} ms" for ms in (found.prefill_ms, found.alone_ms, found.together_ms))
            table.row(
                name, *times, *(f"{found.ratio(prompt_tokens, count):.2f} times" for count in generated)
            )
        table.note(f"Prompts of {prompt_tokens:.0f} rows in the mean.")


def batch(options: argparse.Namespace, report: Report) -> None:
    """What the system around the engine takes from a batch."""
    prompts = load_spec_bench(options.prompts, options.limit)
    queued.beside_engine(options.model, prompts, options.max_tokens, options.pairs, report)


def sharing(options: argparse.Namespace, report: Report) -> None:
    """A long instruction over many short inputs, with and without sharing its cells."""
    with report.table("sharing", "prefix sharing", "prompt tokens computed", "of", "time") as table:
        for name, on in (("on", True), ("off", False)):
            found = engine.measure_sharing(options.model, _long_instruction(), on)
            table.row(name, f"{found.computed:,}", f"{found.prompt_tokens:,}", f"{found.wall_s:.1f} s")


def invariance(options: argparse.Namespace, report: Report) -> None:
    """The price of bit-identical results: many requests at once, and one alone."""
    prompts = load_spec_bench(options.prompts, min(options.limit or 48, 48))
    invariant.measure(options.model, prompts, options.max_tokens, report)


def overhead(_options: argparse.Namespace, report: Report) -> None:
    """HTTP, Redis and Celery around an engine that answers at once."""
    found = queue_overhead.measure()
    times = (f"{ms:.1f} ms" for ms in (found.p50_ms, found.p95_ms, found.p99_ms))
    at_once = f"jobs/s over {found.connections} connections"
    columns = ("", "p50", "p95", "p99", at_once)
    with report.table("overhead", *columns, model=SCRIPTED_ENGINE) as table:
        table.row("from submitting a job to its result", *times, f"{found.jobs_per_s:.0f}")


def streams(_options: argparse.Namespace, report: Report) -> None:
    """What streaming adds between the engine's token and the client's."""
    columns = ("streams at once", "tokens/s of all", "p50", "p95", "p99")
    with report.table("streams", *columns, model=SCRIPTED_ENGINE) as table:
        for added in streaming.measure():
            times = (f"{ms:.1f} ms" for ms in (added.p50_ms, added.p95_ms, added.p99_ms))
            table.row(added.streams, f"{added.tokens_per_s:.0f}", *times)


def python(options: argparse.Namespace, report: Report) -> None:
    """Python's share of a step at eight requests."""
    with report.table("python", "sampling", "share of a step", "step") as table:
        for name, sampling in (
            ("greedy", SamplingParams(max_tokens=400, ignore_eos=True)),
            ("top_p 0.9", SamplingParams(max_tokens=400, ignore_eos=True, temperature=0.8, top_p=0.9)),
        ):
            share, step_ms = engine.python_share(options.model, sampling)
            table.row(name, f"{share:.1%}", f"{step_ms:.1f} ms")
        table.note("The profiler's own cost is included.")


def attention(options: argparse.Namespace, report: Report) -> None:
    """What the cells of other requests cost a decode step."""
    counts = (0, 3000, 6000)
    columns = (f"{SLOTS} rows, beside so many cells of others", *(f"{count:,}" for count in counts))
    with report.table("attention", *columns) as table:
        for name, path in (("as shipped", options.model), ("in BF16", Path(unpacked(str(options.model))))):
            table.row(name, *(f"{ms:.1f} ms" for ms in engine.foreign_cells(path, counts).values()))


def cells(options: argparse.Namespace, report: Report) -> None:
    """Step time by cells of each request, beside llama.cpp's own calls; of a large model too with --made."""
    _by_cells("cells", options.model, by_cells.REQUESTS, by_cells.CELLS, options, report)
    if options.made:
        shape, format = by_cells.LARGE, by_cells.LARGE_FORMAT
        large = made(options.model, options.made, parse_shape(shape), format)
        name = f"cells-{shape.lower()}"
        _by_cells(name, large, by_cells.FEW_REQUESTS, by_cells.LARGE_CELLS, options, report)


def _by_cells(
    name: str,
    model: Path,
    requests: Sequence[int],
    lengths: Sequence[int],
    options: argparse.Namespace,
    report: Report,
) -> None:
    steps = by_cells.Steps(model, max(requests), max(lengths))
    print(f"{max(requests)} slots, kv_cells {steps.kv_cells}: lanes of {steps.lane_cells} cells", flush=True)
    points = []
    for point in by_cells.measure(steps, options.batched_bench, model, options.pairs, requests, lengths):
        print(point.line(), flush=True)
        points.append(point)
    steps.close()
    with report.table(name, *cells_chart.columns(requests), model=model.name) as table:
        for length in lengths:
            table.row(*cells_chart.row(length, requests, points))
        table.note(
            f"Medians of {options.pairs} pairs of runs, {by_cells.STEPS} steps in each, "
            f"`MEDUSAQ_KV_CELLS={steps.kv_cells}`."
        )
        table.data["points"] = [asdict(point) for point in points]


def server(options: argparse.Namespace, report: Report) -> None:
    """Many requests at once, against llama-server with as many slots and the same file."""
    if options.server is None:
        print("left out: give --server with a llama-server binary", flush=True)
        return
    prompts = load_spec_bench(options.prompts, options.limit or SERVER_PROMPTS)
    distinct = same_file.Load("different prompts", prompts, options.max_tokens)
    shared = same_file.Load("one instruction", engine.short_inputs(_long_instruction()), SHORT_ANSWER)
    loads = [(format, distinct) for format in options.formats]
    loads += [(AS_SHIPPED, shared)] if AS_SHIPPED in options.formats else []
    same_file.measure(options.server, options.model, loads, options.pairs, report)


def lanes(options: argparse.Namespace, report: Report) -> None:
    """Many requests at once, against the engine of an earlier checkout."""
    if options.against is None:
        print(
            "left out: give --against with a checkout of an earlier commit, such as a git worktree",
            flush=True,
        )
        return
    prompts = load_spec_bench(options.prompts, options.limit)
    against_earlier.measure(
        options.against, prompts, options.max_tokens, options.weights, options.slots, options.pairs, report
    )


BENCHMARKS: dict[str, Callable[[argparse.Namespace, Report], None]] = {
    "throughput": throughput,
    "batch": batch,
    "weights": lambda options, report: formats.weights(str(options.model), report),
    "formats": lambda options, report: formats.compiled(options.model, report),
    "importance": lambda options, report: formats.importance(str(options.model), options.imatrix, report),
    "ceiling": ceiling,
    "sharing": sharing,
    "invariance": invariance,
    "overhead": overhead,
    "streams": streams,
    "python": python,
    "attention": attention,
    "cells": cells,
    "kv": kv.measure,
    "server": server,
    "lanes": lanes,
    "decode": decode.measure,
    "schemas": lambda options, report: schemas.measure(options.model, report),
    "structured": lambda options, report: structured.measure(options.model, report),
    "long-prompts": lambda options, report: long_prompts.measure(options.model, report),
    "tables": lambda _, report: tables.measure(report),
    "small-tasks": lambda options, report: small_tasks.measure(options.model, report),
    "widened": comparison.run,
    "on-paper": on_paper.run,
}


def _show(name: str, measured: Throughput) -> float:
    print(measured.line(name), flush=True)
    return measured.tokens_per_s


def _long_instruction() -> str:
    """The system instruction that most example prompts share: about 400 tokens."""
    lines = [json.loads(line) for line in formats.EXAMPLES.read_text(encoding="utf-8").splitlines()]
    messages = [
        m for line in lines for m in line.get("body", {}).get("messages", ()) if m["role"] == "system"
    ]
    return str(max((m["content"] for m in messages), key=len))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    several = "`server`, `cells`, `kv`, `lanes` and `batch`"
    parser.add_argument("--model", type=Path, default=Path(default_model_path()), help="a GGUF")
    parser.add_argument("--prompts", type=Path, default=SPEC_BENCH, help="a file in the format of Spec-Bench")
    parser.add_argument("--limit", type=positive, help="take only so many prompts, evenly spread")
    parser.add_argument("--max-tokens", type=positive, default=OUTPUT_TOKENS)
    parser.add_argument("--server", type=program, help="a llama-server binary to compare with")
    parser.add_argument("--imatrix", type=program, help="a llama-imatrix binary to compare with")
    parser.add_argument("--batched-bench", type=program, help="a llama-batched-bench binary to compare with")
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
    add_record(parser)
    comparison.add_options(parser)
    decode.add_options(parser)
    on_paper.add_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
