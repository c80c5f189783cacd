"""What else a user could install, beside `medusaq run`: the same prompts, greedy, so many at once.

    python -m tests.benchmarks.peers --server PATH/llama-server [--prompts FILE] [--limit N] [--record [FILE]]

OpenVINO GenAI and vLLM for CPUs are installed into environments of their own, once. Turns are interleaved.
Each answer has exactly so many tokens: all do the same work. Loading a model is not counted; the start of the
command `medusaq run` is. The other two are called inside a process: so is our engine, in a row of its own.
A peer that does not work is named.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from docs.measured.peers import ENGINE, OURS
from engine import EngineConfig
from engine.llama.model import Model, default_model_path
from engine.weights.format_selection import open_model
from tests.benchmarks import common
from tests.benchmarks.baselines import llama_server
from tests.benchmarks.common import OUTPUT_TOKENS, SPEC_BENCH, Throughput, ToolFailed, load_spec_bench
from tests.benchmarks.inference import engine
from tests.benchmarks.peers import environment
from tests.benchmarks.peers.peer import Peer
from tests.benchmarks.queue import queued
from tests.support.measuring.report import Report, add_record, shown_command, spread
from tests.support.measuring.sigterm import clean_up_on_sigterm

LIMIT = 24
AT_ONCE = (1, 4, 16, 32)
ROUNDS = 5
System = Callable[[int], Throughput]  # of so many requests at once


def main() -> None:
    clean_up_on_sigterm()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", type=common.program, help="a llama-server binary")
    parser.add_argument("--prompts", type=Path, default=SPEC_BENCH, help="a file in the format of Spec-Bench")
    parser.add_argument("--limit", type=common.positive, default=LIMIT)
    parser.add_argument("--max-tokens", type=common.positive, default=OUTPUT_TOKENS)
    parser.add_argument("--rounds", type=common.positive, default=ROUNDS)
    parser.add_argument("--at-once", type=common.positive, nargs="+", default=AT_ONCE)
    parser.add_argument("--model", type=Path, default=Path(default_model_path()))
    add_record(parser)
    options = parser.parse_args()
    command = shown_command("tests.benchmarks.peers", sys.argv[1:])
    measure(options, Report(command, options.record, options.model.name))


def measure(options: argparse.Namespace, report: Report) -> None:
    prompts = load_spec_bench(options.prompts, options.limit)
    columns = ("system", "at once", "tokens/s", f"{OURS}, to it", f"{ENGINE}, to it")
    many = len(prompts) > LIMIT
    recorded = report.table("peers-many", *columns) if many else report.table("peers", *columns)
    open_model(EngineConfig(model=str(options.model), slots=max(options.at_once)))  # measures, once
    with ExitStack() as stack, recorded as table:
        systems, missing = _systems(options, prompts, stack)
        for at_once in options.at_once:
            found: dict[str, list[float]] = {name: [] for name in systems}
            for _ in range(options.rounds):
                for name, system in systems.items():
                    run = system(at_once)
                    print(run.line(f"{name}, {at_once}"), flush=True)
                    found[name].append(run.tokens_per_s)
            for name, speeds in found.items():
                ratios = [
                    median(ours / theirs for ours, theirs in zip(found[each], speeds, strict=True))
                    for each in (OURS, ENGINE)
                ]
                table.row(name, at_once, spread(speeds), *(f"{ratio:.2f}" for ratio in ratios))
            table.data[str(at_once)] = {name: round(median(speeds), 1) for name, speeds in found.items()}
        table.note(f"{len(prompts)} prompts, {options.max_tokens} tokens each.")
        for sentence in missing:
            table.note(sentence)


def _systems(
    options: argparse.Namespace, prompts: list[str], stack: ExitStack
) -> tuple[dict[str, System], list[str]]:
    """Those that work, and a sentence on each that does not, or on how long it loads."""
    model, tokens, most = options.model, options.max_tokens, max(options.at_once)
    notes = []
    systems: dict[str, System] = {
        OURS: lambda at_once: queued.measure(model, prompts, tokens, at_once, ignore_eos=True),
        ENGINE: lambda at_once: engine.measure(
            EngineConfig(model=str(model), slots=at_once), prompts, tokens, ignore_eos=True
        ),
    }
    if options.server:
        systems["llama-server"] = lambda at_once: llama_server.measure(
            options.server, model, prompts, tokens, at_once, ignore_eos=True
        )
    else:
        notes.append("llama-server is left out: --server names it.")
    loaded = Model(str(model))
    ids = engine.encoded(loaded, prompts)
    length = max(map(len, ids)) + tokens
    del loaded
    for name, make, script in (
        ("OpenVINO GenAI", environment.openvino, "openvino_peer.py"),
        ("vLLM for CPUs", environment.vllm, "vllm_peer.py"),
    ):
        try:
            peer = stack.enter_context(Peer(make(), script, model, most, length))
            peer.answer(ids[:1], 1, common.WARM_UP_TOKENS)
        except ToolFailed as failed:
            notes.append(f"{name} did not work: {failed}")
            continue
        notes.append(f"{name} loads in {peer.load_s:.0f} s.")
        systems[name] = partial(_answered, peer, ids, tokens)
    return systems, notes


def _answered(peer: Peer, prompts: list[list[int]], tokens: int, at_once: int) -> Throughput:
    return peer.answer(prompts, at_once, tokens)


if __name__ == "__main__":
    main()
