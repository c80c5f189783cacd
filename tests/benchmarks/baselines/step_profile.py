"""The engine step by step over many prompts: its throughput, and the steps that take the time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from engine import Completion, EngineConfig, Request, SamplingParams
from engine.core.engine import Engine, StepReport
from engine.speculative.setup import speculate
from engine.weights.format_selection import open_model
from tests.benchmarks.common import WARM_UP_PROMPT, WARM_UP_TOKENS, Throughput, ToolFailed, thin_end

COLUMNS = ("steps", "share of the time", "tokens/s", "tokens a step and request", "of it in llama.cpp")
BANNED = -100.0  # logit_bias of tokens that end an answer


class Kind(StrEnum):
    """Of steps. FULL: no prompts, and no slot is free or a request waits for cells. THIN: the others."""

    PROMPTS = "prompts"
    FULL = "full steps"
    THIN = "thin end"


@dataclass(slots=True)
class Steps:
    """Those of one kind. decode_s: seconds of them in llama.cpp. ready: requests that got tokens, summed."""

    seconds: float = 0.0
    decode_s: float = 0.0
    emitted: int = 0
    ready: int = 0

    def add(self, seconds: float, report: StepReport) -> None:
        self.seconds += seconds
        self.decode_s += report.decode_s
        self.emitted += report.emitted
        self.ready += report.ready

    def row(self, wall_s: float) -> tuple[str, ...]:
        """What COLUMNS say after the kind. wall_s: of the runs that these steps are of."""
        if not self.seconds:
            return ("0%", "-", "-", "-")
        return (
            f"{self.seconds / wall_s:.0%}",
            f"{self.emitted / self.seconds:.1f}",
            f"{self.emitted / max(1, self.ready):.2f}",
            f"{self.decode_s / self.seconds:.1%}",
        )


@dataclass(frozen=True, slots=True)
class Profile:
    """Where the time of some runs went. wall_s: seconds of all, those between steps included."""

    wall_s: float = 0.0
    kinds: dict[Kind, Steps] = field(default_factory=lambda: {kind: Steps() for kind in Kind})

    def rows(self) -> list[tuple[str, ...]]:
        return [(kind, *steps.row(self.wall_s)) for kind, steps in self.kinds.items()]

    def __add__(self, other: Profile) -> Profile:
        def both(a: Steps, b: Steps) -> Steps:
            return Steps(
                a.seconds + b.seconds, a.decode_s + b.decode_s, a.emitted + b.emitted, a.ready + b.ready
            )

        return Profile(
            self.wall_s + other.wall_s, {kind: both(self.kinds[kind], other.kinds[kind]) for kind in Kind}
        )


def measure(config: EngineConfig, prompts: Sequence[str], max_tokens: int) -> tuple[Throughput, Profile]:
    """All prompts at once into a new engine, greedy, with max_tokens each: the end of an answer is banned.

    Starting and one warm-up request are not counted; what is to be measured of the machine is known before.
    Raises EngineError, or ToolFailed where a request failed.
    """
    engine = Engine(config, open_model(config))
    try:
        if config.speculation and engine.model.can_share_prefixes:
            speculate(engine, config)
        _run(engine, [WARM_UP_PROMPT], WARM_UP_TOKENS)
        return _run(engine, prompts, max_tokens)
    finally:
        engine.close()
        engine.layouts.close()


def _run(engine: Engine, prompts: Sequence[str], max_tokens: int) -> tuple[Throughput, Profile]:
    model = engine.model
    ends = {token: BANNED for token in range(model.vocab_size) if model.ends_generation(token)}
    params = SamplingParams(max_tokens=max_tokens, logit_bias=ends)
    kinds = {kind: Steps() for kind in Kind}
    ended: list[float] = []
    results: list[Completion] = []
    started = time.perf_counter()
    for i, prompt in enumerate(prompts):
        engine.add(engine.prepare(Request(id=str(i), prompt=prompt, sampling=params), time.monotonic()))
    while not engine.idle:
        began = time.perf_counter()
        report = engine.step()
        now = time.perf_counter()
        kinds[_kind(engine, report)].add(now - began, report)
        for one in report.ended:
            if not isinstance(one.outcome, Completion):
                raise ToolFailed(f"the engine failed on a prompt: {one.outcome.message}")
            results.append(one.outcome)
            ended.append(now - started)
    wall_s = time.perf_counter() - started
    throughput = Throughput(
        requests=len(results),
        prompt_tokens=sum(one.prompt_tokens for one in results),
        generated_tokens=sum(one.completion_tokens for one in results),
        wall_s=wall_s,
        cached_tokens=sum(one.cached_tokens for one in results),
        thin_s=thin_end(ended, engine.info.slots),
    )
    return throughput, Profile(wall_s, kinds)


def _kind(engine: Engine, report: StepReport) -> Kind:
    if report.prompt_rows:
        return Kind.PROMPTS
    full = report.running >= engine.info.slots or engine.scheduler.waiting > 0
    return Kind.FULL if full else Kind.THIN
