"""Which results are the same as of a request alone on the same device, whatever shares its batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from engine import Completion, Request
from engine.base.request import TokenLogprob
from tests.engine.helpers.drive import QUESTIONS, SHARED, alone, completions, fresh, prompts, request, run
from tests.engine.helpers.known_drafts import Bushy, Oracle
from tests.engine.helpers.tiny import VOCAB, write_tiny_gguf

Results = dict[str, Completion]
Settings = Mapping[str, object]  # of an engine: what is computed with
VOCABULARY = {True: VOCAB - 20, False: 49_000}  # tokens for drafts, of the tiny model and of the packaged one


def of_the_tiny_model(settings: Settings, folder: Path) -> Iterator[str]:
    texts = ["jade cafe " * 12 + text for text in prompts(8, most=12)]
    requests = [request(f"r{i}", text, max_tokens=12 + 2 * i, logprobs=2) for i, text in enumerate(texts)]
    return compared(write_tiny_gguf(folder / "tiny.gguf"), settings, requests)


def of_the_packaged_model(settings: Settings, _folder: Path) -> Iterator[str]:
    texts = [SHARED[: len(SHARED) // 3] + text for text in QUESTIONS]
    requests = [request(f"r{i}", text, max_tokens=8 + 2 * i, logprobs=2) for i, text in enumerate(texts)]
    return compared(None, settings, requests)


def compared(model: str | None, settings: Settings, requests: list[Request]) -> Iterator[str]:
    """A line for each way of running the same requests. model: None for the packaged one."""
    config = {"kv_cells": 4096, "slots": 8, **settings}
    one_by_one = {**config, "slots": 1, "prefix_sharing": False}
    reference = alone(model, requests, **one_by_one)
    outputs = {name: completion.tokens for name, completion in reference.items()}
    vocabulary = VOCABULARY[model is not None]

    def engine_with(drafts: Bushy | Oracle | None = None, **changed: object) -> Callable[[], Results]:
        return lambda: completions(run(fresh(model, drafts, **{**config, **changed}), requests))

    def a_few() -> Results:
        engine, results = fresh(model, Bushy(outputs, vocabulary, 3), **config), Results()
        for first in range(0, len(requests), 2):
            results |= completions(run(engine, requests[first : first + 2]))
        return results

    ways: dict[str, Callable[[], Results]] = {
        "alone again": lambda: one_after_another(model, requests, one_by_one),
        "8 together, in lanes": engine_with(prefix_sharing=False),
        "8 together, with the prefix that they share": engine_with(),
        "8 together, with right drafts": engine_with(Oracle(outputs)),
        "2 together, with random trees": a_few,
        "8, then few: moved between layouts, with trees": engine_with(Bushy(outputs, vocabulary, 5)),
        "the processor instead": lambda: one_after_another(model, requests, {**one_by_one, "gpu_layers": 0}),
    }
    for way, results in ways.items():
        yield f"{way}: {difference(reference, results())}"


def one_after_another(model: str | None, requests: list[Request], config: dict[str, object]) -> Results:
    """As alone(), which would return what it has computed before."""
    engine, results = fresh(model, **config), Results()
    for one in requests:
        results |= completions(run(engine, [one]))
    return results


def difference(reference: Results, results: Results) -> str:
    """How many answers are the same to the bit, and how far the others are apart before their tokens are."""
    bits = sum(_bare(results[name]) == _bare(one) for name, one in reference.items())
    tokens = sum(results[name].tokens == one.tokens for name, one in reference.items())
    pairs = (pair for name, one in reference.items() for pair in _until_they_part(one, results[name]))
    apart = max((abs(a.logprob - b.logprob) for a, b in pairs), default=0.0)
    if bits == len(reference):
        return "identical to the bit"
    same = "the same tokens" if tokens == len(reference) else f"{tokens} of {len(reference)} the same tokens"
    return f"{same}; log-probabilities up to {apart:.2g} apart"


def _bare(completion: Completion) -> tuple[object, ...]:
    return completion.tokens, completion.logprobs


def _until_they_part(one: Completion, other: Completion) -> Iterator[tuple[TokenLogprob, TokenLogprob]]:
    for a, b in zip(one.logprobs or (), other.logprobs or (), strict=False):
        if a.token_id != b.token_id:
            return
        yield a, b
