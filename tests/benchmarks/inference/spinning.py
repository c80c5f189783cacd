"""What OpenMP's spinning does to an engine alone, and to one that shares its cores.

    python -m tests.benchmarks.inference.spinning [--model q4_0.gguf] [--rounds 3]

GOMP_SPINCOUNT is how often a thread looks for the others before it sleeps; OpenMP reads it once, so
each engine is a process of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import track

from common.processor import usable_cores
from engine import Decoding, EngineConfig, ModelLoadError, Request, SamplingParams
from engine.core.engine import Engine
from engine.llama.model import default_model_path
from tests.benchmarks.common import SLOTS
from tests.engine.helpers.drive import opened
from tests.support.measuring.report import Report, add_record, shown_command

SPINS = (100, 1000, 10_000, 300_000)  # the last is OpenMP's default
TOKENS = {1: 96, SLOTS: 24}  # of each request, by how many there are
# name -> (engines, requests of each, threads of each or 0 for all, whether another process computes too)
CASES = {
    "one request": (1, 1, 0, False),
    "one request beside a busy process": (1, 1, 0, True),
    f"{SLOTS} requests": (1, SLOTS, 0, False),
    f"{SLOTS} requests beside a busy process": (1, SLOTS, 0, True),
    f"two engines, {SLOTS} requests each": (2, SLOTS, 0, False),
    "the same with half of the threads each": (2, SLOTS, max(1, usable_cores() // 2), False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, default=Path(default_model_path()), help="a GGUF (default: the packaged one)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--be-engine", nargs=2, type=int, metavar=("REQUESTS", "THREADS"), help="for itself")
    add_record(parser)
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    if options.be_engine:
        be_engine(options.model, *options.be_engine)
    else:
        command = shown_command("tests.benchmarks.inference.spinning", sys.argv[1:])
        compare(options.model, options.rounds, Report(command, options.record, options.model.name))


def compare(model: Path, rounds: int, report: Report) -> None:
    totals = defaultdict[tuple[str, int], list[float]](lambda: [0.0, 0.0])
    turns = [(name, spins) for _ in range(rounds) for name in CASES for spins in SPINS]
    for name, spins in track(turns, "runs", console=Console(stderr=True)):
        tokens, seconds = measure(model, spins, *CASES[name])
        totals[name, spins][0] += tokens
        totals[name, spins][1] += seconds
    with report.table("spinning", "tokens/s by spins", *(f"{spins:,}" for spins in SPINS)) as table:
        for name in CASES:
            speeds = (totals[name, spins][0] / totals[name, spins][1] for spins in SPINS)
            table.row(name, *(f"{speed:.0f}" for speed in speeds))


def measure(
    model: Path, spins: int, engines: int, requests: int, threads: int, busy: bool
) -> tuple[int, float]:
    """Tokens of all engines together, and seconds from their common start to the end of the last."""
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.inference.spinning",
        "--model",
        str(model),
        "--be-engine",
    ]
    started = [
        subprocess.Popen(
            [*command, str(requests), str(threads)],
            env={**os.environ, "GOMP_SPINCOUNT": str(spins)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(engines)
    ]
    try:
        for engine in started:
            _line(engine)
        with busy_process(busy):
            began = time.perf_counter()
            for engine in started:
                assert engine.stdin
                engine.stdin.write("go\n")
                engine.stdin.flush()
            tokens = sum(int(_line(engine)) for engine in started)
            return tokens, time.perf_counter() - began
    finally:
        for engine in started:
            engine.kill()
            engine.communicate()


def _line(engine: subprocess.Popen[str]) -> str:
    assert engine.stdout
    line = engine.stdout.readline()
    if not line:
        raise SystemExit(engine.wait())  # it has said why
    return line


@contextmanager
def busy_process(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def be_engine(model: Path, requests: int, threads: int) -> None:
    """Say that it is ready, wait for a line, run the requests, and say how many tokens that gave."""
    try:
        engine = opened(EngineConfig(model=str(model), slots=requests, threads=threads))
    except ModelLoadError as error:
        raise SystemExit(f"error: {error}") from None
    _run(engine, requests, 2)
    print("ready", flush=True)
    sys.stdin.readline()
    print(_run(engine, requests, TOKENS[requests]), flush=True)


def _run(engine: Engine, requests: int, tokens: int) -> int:
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    for n in range(requests):
        request = Request(
            id=str(n), prompt=f"Write about the number {n}.", sampling=sampling, decoding=Decoding.NORMAL
        )
        engine.add(engine.prepare(request, time.monotonic()))
    emitted = 0
    while not engine.idle:
        emitted += engine.step().emitted
    return emitted


if __name__ == "__main__":
    main()
