"""One request at a time: our engine beside `llama-server`, plain and with its drafts from n-grams.

    python -m tests.benchmarks.baselines.speculation --server llama-server --prompts spec_bench_dev.jsonl

Every prompt goes to each, in changing order, greedy, and only decoding is timed: tokens after the first,
in the seconds that they took. Prompts are not kept from one request to the next.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import track

from engine import Decoding, EngineConfig, Request, SamplingParams
from engine.core.engine import Engine
from engine.llama.model import default_model_path
from engine.speculative.setup import speculate
from tests.benchmarks import common
from tests.benchmarks.baselines import llama_server
from tests.engine.helpers.drive import opened
from tests.support.measuring.report import Report, add_record, shown_command

SPINS = "GOMP_SPINCOUNT"
NGRAM_MOD = ["--spec-type", "ngram-mod", "--spec-draft-n-max", "3"]
# Its lookups by default want 24 equal tokens, which a chat of this length seldom has.
SPECS = {
    "ngram-mod, 3 drafts": [*NGRAM_MOD, "--spec-ngram-mod-n-match", "4", "--spec-ngram-mod-n-max", "3"],
    "ngram-simple": [
        *("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "4"),
        *("--spec-ngram-simple-size-m", "3"),
    ],
    "ngram-map-k": [
        *("--spec-type", "ngram-map-k", "--spec-ngram-map-k-size-n", "4"),
        *("--spec-ngram-map-k-size-m", "3"),
    ],
}
Measure = Callable[[str], tuple[int, float]]  # prompt -> tokens after the first, and their seconds


def our_engine(engine: Engine, decoding: Decoding, max_tokens: int) -> Measure:
    def measure(prompt: str) -> tuple[int, float]:
        request = Request(
            id="-", prompt=prompt, sampling=SamplingParams(max_tokens=max_tokens), decoding=decoding
        )
        engine.add(engine.prepare(request, time.monotonic()))
        tokens, seconds = 0, 0.0
        while not engine.idle:
            began = time.perf_counter()
            report = engine.step()
            if not report.prompt_rows:
                tokens += report.emitted
                seconds += time.perf_counter() - began
        return tokens, seconds

    return measure


def their_server(client: httpx.Client, max_tokens: int) -> Measure:
    def measure(prompt: str) -> tuple[int, float]:
        body = {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "cache_prompt": False,
        }
        response = client.post("/v1/chat/completions", json=body)
        response.raise_for_status()
        timings = response.json()["timings"]
        return timings["predicted_n"] - 1, timings["predicted_ms"] / 1e3

    return measure


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--server", type=common.program, required=True, help="the llama-server binary")
    parser.add_argument("--heads", default=None, help="Draft heads (default: the packaged ones)")
    add_record(parser)
    arguments = parser.parse_args()
    prompts = common.load_spec_bench(arguments.prompts, arguments.limit)
    model, max_tokens = arguments.model or Path(default_model_path()), arguments.max_tokens
    config = EngineConfig(model=str(model), slots=1, prefix_sharing=False, heads=arguments.heads)
    engine = opened(config)
    speculate(engine, config)
    context = common.context_needed(model, prompts, max_tokens)
    with contextlib.ExitStack() as stack:
        measures = {
            "medusaq, plain": our_engine(engine, Decoding.NORMAL, max_tokens),
            "medusaq, auto": our_engine(engine, Decoding.AUTO, max_tokens),
        }
        for name, options in {"plain": ["--spec-type", "none"], **SPECS}.items():
            url = stack.enter_context(llama_server.running(arguments.server, model, 1, context, options))
            client = stack.enter_context(httpx.Client(base_url=url, timeout=llama_server.REQUEST_LIMIT_S))
            measures[f"llama-server, {name}"] = their_server(client, max_tokens)
        totals = dict.fromkeys(measures, (0, 0.0))
        for measure in measures.values():
            measure(common.WARM_UP_PROMPT)
        order = deque(measures)
        for prompt in track(prompts, "prompts", console=Console(stderr=True)):
            order.rotate(1)
            for name in order:
                tokens, seconds = measures[name](prompt)
                totals[name] = (totals[name][0] + tokens, totals[name][1] + seconds)
    speeds = {name: tokens / seconds for name, (tokens, seconds) in totals.items()}
    spins = os.environ[SPINS]  # set by the engine, unless it was set before
    spinning = spins == llama_server.OPENMP_DEFAULT[SPINS]
    command = shown_command("tests.benchmarks.baselines.speculation", sys.argv[1:])
    report = Report(f"{SPINS}={spins} {command}" if spinning else command, arguments.record, model.name)
    name = "one-request-spinning" if spinning else "one-request"
    with report.table(name, "one request at a time", "tokens/s", "to llama-server, plain") as table:
        for name, speed in speeds.items():
            table.row(name, f"{speed:.1f}", f"{speed / speeds['llama-server, plain']:.2f}")
        table.note(
            f"{len(prompts)} prompts, at most {max_tokens} tokens each; `{SPINS}={spins}` in the engine."
        )


if __name__ == "__main__":
    main()
