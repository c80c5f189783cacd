"""Every benchmark, each part by itself, in the order of the documents.

    python -m tests.benchmarks.all [--record [FILE]] [--only NAME ...] [options of the parts]

A part that fails does not keep the others from being measured, and one whose program or file was not given is
left out; both are said at the end. Into the repository's file recorded, the documents are rendered again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from docs.measured import __main__ as documents
from docs.measured.figures import FIGURES
from engine.llama.model import default_model_path
from engine.weights.quantise import requantise
from tests.benchmarks import __main__ as side_by_side
from tests.benchmarks import batches
from tests.benchmarks.baselines.llama_server import OPENMP_DEFAULT
from tests.benchmarks.common import SPEC_BENCH
from tests.support.measuring.report import add_record
from tests.support.workers import ROOT

FAST = "q4_0"  # the format of the model that is decoded one request at a time
PROMPTS = ("prompts", "limit", "max-tokens")
OF_LARGE_MODELS = ("made", "shapes", "large-formats", "requests", "heads", "spec")
OF_PAPER = ("times", "draft-time")
SIDE_BY_SIDE = "tests.benchmarks"
OF_SIDE_BY_SIDE = {  # part of that module -> options that are handed on, beside those of its prompts
    "throughput": ("server",),
    "batch": ("pairs",),
    "importance": ("imatrix",),
    "cells": ("pairs", "batched-bench", "made"),
    "kv": ("pairs", "batched-bench"),
    "server": ("pairs", "server"),
    "lanes": ("pairs", "against"),
    "decode": (*PROMPTS, "decode-requests"),
    "widened": ("server", *OF_LARGE_MODELS),
    "on-paper": ("heads", *OF_PAPER),
}
TAKES = {  # other module -> options that are handed on
    "tests.benchmarks.batches": ("lines", "jobs", "batches", "rounds", "seconds", "many"),
    "tests.benchmarks.baselines.speculation": (*PROMPTS, "server"),
    "tests.benchmarks.peers": (*PROMPTS, "server", "rounds"),
    "tests.benchmarks.drafting.lookup_simulation": PROMPTS,
    "tests.benchmarks.drafting.learning_curve": ("answers",),
    "tests.benchmarks.drafting.trained": ("answers",),
    "tests.benchmarks.inference.spinning": ("rounds",),
    "tests.chaos": ("strikes", "minutes"),
    "tests.containers": ("previous", "mirror"),
    "tests.large_model": ("made",),
    "tests.chaos.hostile": ("pairs", "seconds"),
}
HELP = {
    "prompts": "a file in the format of Spec-Bench",
    "server": "a llama-server binary",
    "batched-bench": "a llama-batched-bench binary",
    "imatrix": "a llama-imatrix binary",
    "against": "an earlier checkout, for `lanes`",
    "answers": "folders of answers that `medusaq train-heads` collected",
}
SEVERAL = ("answers", "shapes", "large-formats", "requests", "times")


@dataclass(frozen=True, slots=True)
class Part:
    """only: of several that the module has. needs: an option. fast: over the model in the format FAST."""

    module: str
    only: str = ""
    needs: str = ""
    fast: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


NEEDS = {
    "server": "server",
    "lanes": "against",
    **dict.fromkeys(side_by_side.NEED_BATCHED_BENCH, "batched-bench"),
}
SPECULATION = "tests.benchmarks.baselines.speculation"
PARTS = {
    **{
        name: Part(SIDE_BY_SIDE, name, NEEDS.get(name) or ("prompts" if needs_prompts else ""))
        for name in side_by_side.BENCHMARKS
        for needs_prompts in (name in side_by_side.NEED_PROMPTS,)
    },
    "peers": Part("tests.benchmarks.peers", needs="server"),
    "one-request": Part(SPECULATION, needs="server", fast=True),
    "one-request-spinning": Part(SPECULATION, needs="server", fast=True, environment=OPENMP_DEFAULT),
    "lookup-simulation": Part("tests.benchmarks.drafting.lookup_simulation", needs="prompts", fast=True),
    "spinning": Part("tests.benchmarks.inference.spinning", fast=True),
    "run-times": Part("tests.benchmarks.inference.run_times"),
    "heads": Part("tests.benchmarks.drafting.heads"),
    "guesses": Part("tests.benchmarks.drafting.guesses"),
    "trained": Part("tests.benchmarks.drafting.trained", needs="answers"),
    "learning-curve": Part("tests.benchmarks.drafting.learning_curve", needs="answers"),
    **{name: Part("tests.benchmarks.batches", name) for name in batches.BENCHMARKS},
    "vicuna": Part("tests.benchmarks.large.vicuna"),
    "mixed-load": Part("tests.benchmarks.queue.mixed_load"),
    "fleet": Part("tests.benchmarks.fleet"),
    "fleet-bulk": Part("tests.benchmarks.fleet.bulk"),
    "chaos": Part("tests.chaos"),
    "hostile-keys": Part("tests.chaos.hostile"),
    "machines": Part("tests.machines"),
    "containers": Part("tests.containers"),
    "large-model": Part("tests.large_model"),
}
# Unless --only names them: they take hours or much memory, or need root or Docker.
HEAVY = {"machines", "containers", "large-model", "vicuna"}
LEFT_OUT = side_by_side.LEFT_OUT | batches.LEFT_OUT | HEAVY


def takes(part: Part) -> tuple[str, ...]:
    """Options that the part uses: the others would stand in the command that its table shows."""
    if part.module != SIDE_BY_SIDE:
        return TAKES.get(part.module, ())
    return (*(PROMPTS if part.only in side_by_side.NEED_PROMPTS else ()), *OF_SIDE_BY_SIDE.get(part.only, ()))


def command(part: Part, given: Mapping[str, list[str]], model: Path, record: Path | None) -> list[str]:
    """given: values of options."""
    words = [sys.executable, "-m", part.module, *(["--only", part.only] if part.only else [])]
    for name in takes(part):
        words += [f"--{name}", *given[name]] if name in given else []
    words += ["--model", str(model)] if part.fast else []
    return words + (["--record", str(record)] if record else [])


def run(names: Sequence[str], given: Mapping[str, list[str]], record: Path | None) -> int:
    """The number of parts that failed."""
    left_out, failed = [], []
    with tempfile.TemporaryDirectory(prefix="medusaq-bench-") as folder:
        model = Path(folder) / f"{Path(default_model_path()).name.split('.')[0]}.{FAST.upper()}.gguf"
        if any(PARTS[name].fast for name in names):
            requantise(default_model_path(), str(model), FAST)
        for name in names:
            part = PARTS[name]
            if part.needs and part.needs not in given:
                left_out.append(f"{name} (needs --{part.needs})")
                continue
            print(f"\n=== {name}", flush=True)
            done = subprocess.run(
                command(part, given, model, record), cwd=ROOT, env={**os.environ, **part.environment}
            )
            failed += [name] if done.returncode else []
    print(f"\nmeasured: {len(names) - len(left_out) - len(failed)} of {len(names)} parts")
    print(f"left out: {', '.join(left_out) or 'none'}")
    print(f"failed: {', '.join(failed) or 'none'}")
    return len(failed)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = [name for name in PARTS if name not in LEFT_OUT]
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=every, metavar="NAME")
    add_record(parser)
    for name in dict.fromkeys(name for part in PARTS.values() for name in takes(part)):
        many = "+" if name in SEVERAL else 1
        parser.add_argument(f"--{name}", nargs=many, help=HELP.get(name, "of the parts that have it"))
    options = parser.parse_args()
    given = {
        name: value
        for name, value in ((name.replace("_", "-"), value) for name, value in vars(options).items())
        if value is not None and name not in ("only", "record")
    }
    if SPEC_BENCH.is_file():
        given.setdefault("prompts", [str(SPEC_BENCH)])
    failed = run(options.only, given, options.record)
    if options.record == FIGURES:
        documents.main()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
