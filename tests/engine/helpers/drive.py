"""Running an engine step by step in a test, with the KV cache checked against llama.cpp's after each."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import cycle

import pytest

from engine import Completion, EngineConfig, EngineError, Request, SamplingParams
from engine.core.draft_source import DraftSource
from engine.core.engine import Engine
from engine.core.layouts import LaneLayout, Layout
from engine.llama.context import Context, DecodeError, Outputs, Rows
from engine.weights.format_selection import open_model

WORDS = ["abc", "bead", "cafe", "dig", "edge", "fade", "gig", "hide", "ice", "jade", "badge", "cabbage"]
SHARED = "You sort letters from customers by topic. Answer with one word, and nothing else. " * 3
QUESTIONS = (
    "Why is the sky blue?",
    "Name three rivers of Africa, from north to south.",
    "Übersetze ins Englische: Der Zug fährt um acht Uhr ab.",
    "def fibonacci(n):",
    "1, 1, 2, 3, 5, 8,",
    "The history of tea begins in",
    SHARED + "My parcel never came.",
    SHARED + "I was billed twice in May!",
)
Outcome = Completion | EngineError
_references: dict[str, dict[str, Completion]] = {}  # by all that they depend on


def prompts(count: int, seed: int = 0, most: int = 40) -> list[str]:
    """most: words of one."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, most))) for _ in range(count)]


def request(name: str, prompt: str, **sampling: object) -> Request:
    """A raw prompt, so that a test says exactly which text the model sees."""
    params = SamplingParams(**{"max_tokens": 24, "ignore_eos": True, **sampling})  # type: ignore[arg-type]
    return Request(id=name, prompt=prompt, raw=True, sampling=params)


def in_turn(
    texts: Iterable[str], samplers: Mapping[str, Mapping[str, object]], **sampling: object
) -> list[Request]:
    """Each sampler has its share of one batch: they may not disturb each other either. Seeds are counted."""
    ways = cycle(samplers.values())
    return [request(f"r{i}", text, **{"seed": i, **next(ways), **sampling}) for i, text in enumerate(texts)]


def submit(engine: Engine, *requests: Request) -> None:
    for r in requests:
        engine.add(engine.prepare(r, time.monotonic()))


def run(
    engine: Engine, requests: Iterable[Request] = (), before_step: Callable[[int], None] | None = None
) -> dict[str, Outcome]:
    """Step until nothing is left; every invariant of the cache is checked after every step."""
    submit(engine, *requests)
    ended: dict[str, Outcome] = {}
    step = 0
    while not engine.idle:
        if before_step:
            before_step(step)
        for e in engine.step().ended:
            assert e.request_id not in ended, "a request ends once"
            ended[e.request_id] = e.outcome
        check_cache(engine)
        step += 1
        assert step < 5000, "the engine does not come to an end"
    return ended


def completions(outcomes: dict[str, Outcome]) -> dict[str, Completion]:
    for outcome in outcomes.values():
        assert isinstance(outcome, Completion), outcome
    return outcomes  # type: ignore[return-value]


def check_cache(engine: Engine) -> None:
    """The accounting, the sequences' own count and llama.cpp's positions agree; nothing is leaked."""
    layouts = engine.layouts
    placed: dict[tuple[Layout, int], int] = {s.placed: s.computed for s in engine.scheduler.running}
    for layout in (layouts.shared, layouts.lanes):
        if layout is None:
            continue
        lengths = {seq_id: length for (at, seq_id), length in placed.items() if at is layout}
        assert layout._lengths == lengths
        ids = range(engine.info.slots + len(getattr(layout, "leaf_ids", ())))
        for seq_id in ids:
            left = len(layout._left.get(seq_id, ())) if isinstance(layout, LaneLayout) else 0
            assert not (left and seq_id in lengths)
            length = lengths.get(seq_id, left)
            assert layout.context.positions(seq_id) == ((0, length - 1) if length else (-1, -1))
        assert sorted([*layout._free, *lengths]) == list(range(len(layout._free) + len(lengths)))
    if layouts.lanes:
        lanes = sorted(s.seq_id for s in engine.scheduler.running if s.layout is layouts.lanes)
        assert lanes == sorted(layouts.lanes._lengths)


def on_decode(engine: Engine, called: Callable[[int], None]) -> None:
    """Call this after each decode call, in whichever layout, with the number of calls so far."""
    calls = 0

    def watched(context: Context) -> Callable[..., Outputs]:
        decode = context.decode

        def decode_and_call(rows: Rows, hidden: bool = False) -> Outputs:
            nonlocal calls
            outputs = decode(rows, hidden)
            calls += 1
            called(calls)
            return outputs

        return decode_and_call

    for layout in (engine.layouts.shared, engine.layouts.lanes):
        if layout:
            layout.context.decode = watched(layout.context)  # type: ignore[method-assign]


def fresh(model: str | None, draft_source: DraftSource | None = None, **config: object) -> Engine:
    """An engine; a model given by path is the tiny F32 one, whose cache is F32 too."""
    defaults: dict[str, object] = {
        "model": model,
        "slots": 4,
        "kv_cells": 2048,
        "kv_type": "f32" if model else "f16",
    }
    return opened(EngineConfig(**{**defaults, **config}), draft_source)  # type: ignore[arg-type]


def opened(config: EngineConfig, draft_source: DraftSource | None = None) -> Engine:
    """An engine with these settings over its model."""
    return Engine(config, open_model(config), draft_source)


def alone(model: str | None, requests: Iterable[Request], **config: object) -> dict[str, Completion]:
    """The sequential reference: one request at a time, nothing shared, nothing drafted.

    Computed once for the same requests, which many tests run in other ways.
    """
    requests = [*requests]
    key = repr((model, requests, sorted(config.items())))
    if key not in _references:
        engine = fresh(model, **{"slots": 1, "prefix_sharing": False, **config})
        results: dict[str, Completion] = {}
        for r in requests:
            results |= completions(run(engine, [r]))
        _references[key] = results
    return dict(_references[key])


def same(result: Completion, reference: Completion) -> None:
    """Equal in all that a user sees, log-probabilities to the bit."""
    assert result.tokens == reference.tokens
    assert result.text == reference.text
    assert result.finish_reason == reference.finish_reason
    assert result.completion_tokens == reference.completion_tokens
    assert result.prompt_tokens == reference.prompt_tokens
    assert result.logprobs == reference.logprobs


def close(result: Completion, reference: Completion) -> None:
    """Equal, log-probabilities but for the rounding of another batch shape."""
    same(replace(result, logprobs=None), replace(reference, logprobs=None))
    assert result.logprobs is not None
    assert reference.logprobs is not None
    for one, other in zip(result.logprobs, reference.logprobs, strict=True):
        assert one.token_id == other.token_id
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)


def break_decode(engine: Engine, rng: random.Random, share: float) -> list[int]:
    """Let this share of the calls fail after they were made; the numbers of those that did."""
    failures: list[int] = []

    def fail_at_times(calls: int) -> None:
        if rng.random() < share and (not failures or calls > failures[-1] + 20):
            failures.append(calls)
            raise DecodeError(-3)

    on_decode(engine, fail_at_times)
    return failures
