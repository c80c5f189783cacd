"""The engine without the queue: throughput, prefix sharing, and where a step's time goes."""

from __future__ import annotations

import cProfile
import pstats
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine import Completion, EngineConfig, Request, SamplingParams, load
from engine.llama.context import Context, Rows
from engine.llama.model import Model
from engine.text.prompt_encoder import PromptEncoder
from tests.benchmarks.common import SLOTS, WARM_UP_PROMPT, WARM_UP_TOKENS, Throughput
from tests.engine.helpers.drive import opened

SHARED_INPUTS = 64
PROFILED_REQUESTS = 8
PROFILED_STEPS = 200
ROUNDS = 5  # of `attention`


def _request(name: str, prompt: str, max_tokens: int, ignore_eos: bool = False) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos)
    return Request(id=name, prompt=prompt, sampling=sampling)


def measure(
    config: EngineConfig,
    prompts: Iterable[str],
    max_tokens: int,
    when_warm: Callable[[], object] = lambda: None,
    ignore_eos: bool = False,
) -> Throughput:
    """All prompts at once into the engine's queue, greedy; from the first submit to the last result."""
    service = load(config)
    try:
        service.submit(_request("warm-up", WARM_UP_PROMPT, WARM_UP_TOKENS)).result()
        when_warm()
        started = time.perf_counter()
        requests = [_request(str(i), prompt, max_tokens, ignore_eos) for i, prompt in enumerate(prompts)]
        futures = [service.submit(request) for request in requests]
        return _throughput([f.result() for f in futures], time.perf_counter() - started)
    finally:
        service.close()


def _throughput(results: list[Completion], wall_s: float) -> Throughput:
    prompt_tokens = sum(c.prompt_tokens for c in results)
    return Throughput(len(results), prompt_tokens, sum(c.completion_tokens for c in results), wall_s)


@dataclass(frozen=True, slots=True)
class Sharing:
    """One long instruction over many short inputs."""

    prompt_tokens: int
    computed: int
    wall_s: float

    def line(self, name: str) -> str:
        computed = f"{self.computed} of {self.prompt_tokens} prompt tokens computed"
        return f"{name:<24} {computed} in {self.wall_s:.1f} s"


def short_inputs(instruction: str) -> list[str]:
    """Prompts of the same instruction and a short input each."""
    return [f"{instruction}\n\nTicket {i}: parcel {i * 7919 % 10007} is late." for i in range(SHARED_INPUTS)]


def measure_sharing(model: Path, instruction: str, sharing: bool, max_tokens: int = 8) -> Sharing:
    service = load(EngineConfig(model=str(model), slots=SLOTS, prefix_sharing=sharing))
    prompts = short_inputs(instruction)
    try:
        started = time.perf_counter()
        futures = [service.submit(_request(str(i), p, max_tokens)) for i, p in enumerate(prompts)]
        results = [f.result() for f in futures]
        wall_s = time.perf_counter() - started
    finally:
        service.close()
    total = sum(c.prompt_tokens for c in results)
    return Sharing(total, total - sum(c.cached_tokens for c in results), wall_s)


class Probe:
    """A bare context, to time single calls. Sequence 0 is the subject, the others its company."""

    def __init__(self, model: Path, cells: int) -> None:
        self._context = Context(Model(str(model)), cells=cells, seq_ids=SLOTS + 1, max_rows=512)

    def fill(self, seq_id: int, length: int) -> float:
        """Prefill a sequence from nothing; milliseconds a row."""
        self._context.truncate(seq_id, 0)
        started = time.perf_counter()
        for first in range(0, length, 256):
            positions = list(range(first, min(first + 256, length)))
            self._call([seq_id] * len(positions), positions, output=False)
        return (time.perf_counter() - started) * 1e3 / length

    def decode_ms(self, rows: int, repeats: int = 12) -> float:
        """Milliseconds to decode one more token for each of the first `rows` sequences."""
        at = [self._context.positions(seq_id)[1] + 1 for seq_id in range(rows)]
        times = []
        for _ in range(repeats):
            started = time.perf_counter()
            self._call(list(range(rows)), at, output=True)
            times.append(time.perf_counter() - started)
            for seq_id in range(rows):
                self._context.truncate(seq_id, at[seq_id])
        return statistics.median(times) * 1e3

    def _call(self, seq_ids: list[int], positions: list[int], output: bool) -> None:
        n = len(seq_ids)
        tokens, at, ids = (np.array(row, dtype=np.int32) for row in ([1000] * n, positions, seq_ids))
        self._context.decode(Rows(tokens, at, ids, np.full(n, output, dtype=np.int8)))


def foreign_cells(model: Path, counts: tuple[int, ...]) -> dict[int, float]:
    """Milliseconds to decode SLOTS rows of 20 cells each, by the cells that another sequence holds.

    Medians of ROUNDS, in which the counts take turns: other load meets all alike.
    """
    probes = {count: Probe(model, cells=max(counts) + 2 * SLOTS * 20) for count in counts}
    for count, probe in probes.items():
        if count:
            probe.fill(SLOTS, count)
        for seq_id in range(SLOTS):
            probe.fill(seq_id, 20)
    rounds = [{count: probe.decode_ms(SLOTS) for count, probe in probes.items()} for _ in range(ROUNDS)]
    return {count: statistics.median(one[count] for one in rounds) for count in counts}


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What batching could win at most over one request after the other, prefill being the same."""

    prefill_ms: float  # a row
    alone_ms: float  # a token
    together_ms: float  # a token

    def ratio(self, prompt_tokens: float, generated_tokens: float) -> float:
        prefill = prompt_tokens * self.prefill_ms
        return (prefill + generated_tokens * self.alone_ms) / (prefill + generated_tokens * self.together_ms)


def mean_prompt_tokens(model: Path, prompts: Iterable[str]) -> float:
    """Mean length of the prompts in the model's chat template."""
    return statistics.fmean(map(len, encoded(Model(str(model)), prompts)))


def encoded(model: Model, prompts: Iterable[str]) -> list[list[int]]:
    """Token ids of the prompts in the model's chat template."""
    encoder = PromptEncoder(model)
    return [[int(token) for token in encoder.encode(_request("-", p, 1))] for p in prompts]


def ceiling(model: Path, prompt_tokens: int) -> Ceiling:
    """Prefill and lone decoding at this prompt length; SLOTS rows beside next to no other cells."""
    probe = Probe(model, cells=prompt_tokens + 2 * SLOTS * 20)
    prefill = statistics.median(probe.fill(0, prompt_tokens) for _ in range(5))
    alone = probe.decode_ms(1)
    for seq_id in range(SLOTS):
        probe.fill(seq_id, 20)
    return Ceiling(prefill, alone, probe.decode_ms(SLOTS) / SLOTS)


def python_share(model: Path, sampling: SamplingParams) -> tuple[float, float]:
    """(share of the step spent outside llama_decode, step in ms) at eight requests, by cProfile.

    The profiler slows Python and not llama.cpp, so the true share is lower. Context.decode does little
    but call into llama.cpp, which the profiler cannot see into, so its own time counts as llama.cpp's.
    """
    engine = opened(EngineConfig(model=str(model), slots=PROFILED_REQUESTS))
    for i in range(PROFILED_REQUESTS):
        request = Request(id=str(i), prompt=f"Write a long story about the number {i}.", sampling=sampling)
        engine.add(engine.prepare(request, time.monotonic()))
    while any(s.pending > 1 for s in engine.scheduler.sequences()):
        engine.step()
    profiler = cProfile.Profile()
    for _ in range(PROFILED_STEPS):
        profiler.runcall(engine.step)
    times = {
        (Path(file).name, name): (own_s, total_s)
        for (file, _line, name), (_, _, own_s, total_s, _) in pstats.Stats(profiler).stats.items()  # type: ignore[attr-defined]
    }
    step_s, decode_s = times["engine.py", "step"][1], times["context.py", "decode"][0]
    return 1 - decode_s / step_s, step_s / PROFILED_STEPS * 1e3
