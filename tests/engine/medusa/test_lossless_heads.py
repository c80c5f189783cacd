"""Heads of both kinds, trained, random and hostile, beside prompt lookup: the output is plain decoding's.

On a flat curve, as of a GPU, so that wide trees are verified whatever the machine of the test.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from common.processor import usable_cores
from engine import Completion, Decoding, Request
from engine.core.engine import Engine
from engine.medusa.loader import load_heads
from engine.medusa.medusa_source import HeadSource
from engine.medusa.model_rows import ModelRows
from engine.speculative.controller import Speculation
from engine.speculative.prompt_lookup import LookupSource
from engine.speculative.setup import shipped_heads
from engine.speculative.static_tree import StaticTrees
from tests.engine.helpers.drive import (
    QUESTIONS,
    SHARED,
    alone,
    completions,
    fresh,
    in_turn,
    prompts,
    run,
    same,
)
from tests.engine.helpers.known_drafts import Scripted
from tests.support.measuring.profiles import flat
from training.heads.recipe import Kind

pytestmark = pytest.mark.slow

SAMPLERS: dict[str, dict[str, object]] = {
    "greedy": {},
    "cold": {"temperature": 0.2, "top_k": 50, "repetition_penalty": 1.1},
    "warm": {"temperature": 0.8, "top_p": 0.9, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    "hot": {"temperature": 1.5, "min_p": 0.03, "top_k": 200, "frequency_penalty": 0.3},
}
LIVE = pytest.mark.parametrize("live", [1, 32])


def random_heads(path: Path, width: int, vocabulary: int, scale: float, kind: Kind = Kind.MEDUSA) -> Path:
    """scale: of the weights; large ones give heads that are sure of themselves, and wrong."""
    generator = torch.Generator().manual_seed(1)
    state = {"token_map": torch.arange(3, vocabulary, dtype=torch.int32)}
    for head in range(4):
        inputs = (2 + head) * width if kind is Kind.HYDRA else width
        state[f"{head}.0.linear.weight"] = torch.randn(width, inputs, generator=generator) * scale
        state[f"{head}.0.linear.bias"] = torch.randn(width, generator=generator) * scale
    save_file(state, path)
    return path


def drafting(engine: Engine, heads: Path) -> Engine:
    model = engine.model
    loaded = load_heads(
        str(heads),
        width=model.width,
        vocab_size=model.vocab_size,
        model_rows=ModelRows(model.path),
        threads=usable_cores(),
    )
    source = HeadSource(loaded)
    speculation = Speculation(flat(), [LookupSource(), source], StaticTrees(source))
    engine.set_draft_source(speculation, speculation.names)
    return engine


def every_third_forced(requests: Iterable[Request]) -> list[Request]:
    """Those with decoding "medusa" are drafted for at each step, whatever it gains."""
    return [replace(r, decoding=Decoding.MEDUSA) if i % 3 == 0 else r for i, r in enumerate(requests)]


def drafted(results: Iterable[Completion], source: str) -> tuple[int, int]:
    """(verified, accepted)."""
    counts = [c.drafted[source] for c in results if source in c.drafted]
    return sum(c.verified for c in counts), sum(c.accepted for c in counts)


@pytest.fixture(scope="module")
def trained() -> Path:
    from engine.llama.model import default_model_path

    path = shipped_heads(default_model_path())
    assert path, "heads of the default model come with the package"
    return path


@LIVE
@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("scale", [0.02, 1.0])
def test_random_heads_change_nothing_on_f32(
    tiny_gguf: str, tmp_path: Path, scale: float, kind: Kind, live: int
) -> None:
    requests = in_turn(prompts(32), SAMPLERS, max_tokens=20)
    reference = alone(tiny_gguf, requests)
    heads = random_heads(tmp_path / "heads.safetensors", 64, 320, scale, kind)
    engine = drafting(fresh(tiny_gguf, slots=live, kv_cells=4096), heads)
    results = completions(run(engine, every_third_forced(requests)))
    for name in reference:
        assert results[name].tokens == reference[name].tokens
        assert results[name].text == reference[name].text
    assert drafted(results.values(), "medusa")[0] > 100, "they were verified"


@cache
def by_the_default_model() -> tuple[list[Request], dict[str, Completion]]:
    """16 requests, and what plain decoding gives each alone.

    Short ones: heads have no part in reading a prompt, which takes longest. With their drafts they fill a
    call as 32 would.
    """
    beginning = SHARED[: len(SHARED) // 3]
    texts = [*QUESTIONS, *(beginning + w for w in prompts(4, most=6)), *prompts(4, seed=1, most=12)]
    requests = in_turn(texts, SAMPLERS, logprobs=2, max_tokens=12)
    return requests, alone(None, requests, batch_invariant=True)


@pytest.mark.parametrize("live", [pytest.param(1, marks=pytest.mark.thorough), 16])
def test_trained_heads_change_nothing_to_the_bit(trained: Path, live: int) -> None:
    """The quantised default model in batch-invariant mode: tokens, text and log-probabilities."""
    requests, reference = by_the_default_model()
    requests = requests[:8] if live == 1 else requests
    engine = drafting(fresh(None, slots=live, kv_cells=8192, batch_invariant=True), trained)
    results = completions(run(engine, every_third_forced(requests)))
    for name, result in results.items():
        same(result, reference[name])
    verified, accepted = drafted(results.values(), "medusa")
    assert verified > 20
    assert accepted > 0


@pytest.mark.parametrize("live", [pytest.param(1, marks=pytest.mark.thorough), 16])
def test_an_oracle_and_an_adversary_change_nothing_to_the_bit(live: int) -> None:
    """At any temperature: the oracle knows what will be drawn, so all that it says stands."""
    requests, reference = by_the_default_model()
    requests = requests[:8] if live == 1 else requests
    # Four requests in their turn for each, so that each meets every sampler.
    drafts = Scripted({name: c.tokens for name, c in reference.items()}, [(4, 0)] * 4 + [(0, 4)] * 4, 49000)
    engine = fresh(None, drafts, slots=live, kv_cells=8192, batch_invariant=True)
    results = completions(run(engine, requests))
    for name, result in results.items():
        same(result, reference[name])
    answers = [results[r.id] for r in requests]
    assert drafted((answer for i, answer in enumerate(answers) if i % 8 < 4), "scripted")[1] > 25
    assert drafted((answer for i, answer in enumerate(answers) if i % 8 >= 4), "scripted")[1] == 0


def test_sure_and_wrong_heads_change_nothing_to_the_bit(tmp_path: Path) -> None:
    requests, reference = by_the_default_model()
    heads = random_heads(tmp_path / "heads.safetensors", 576, 6000, 1.0)
    engine = drafting(fresh(None, slots=8, batch_invariant=True), heads)
    results = completions(run(engine, every_third_forced(requests[:8])))
    for name, result in results.items():
        same(result, reference[name])
    verified, accepted = drafted(results.values(), "medusa")
    assert verified > 40, "chains: in this mode there are no trees"
    assert accepted < verified / 20
