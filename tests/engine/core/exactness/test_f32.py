"""What a request gets does not depend on how it was run: on a tiny model of 32-bit numbers, in every way."""

from __future__ import annotations

import random

import pytest

from engine import Completion, FinishReason
from engine.core.scheduler import FEW_ON_GPU as FEW
from engine.llama.context import DecodeError
from tests.engine.helpers.drive import (
    WORDS,
    alone,
    break_decode,
    close,
    completions,
    fresh,
    on_decode,
    prompts,
    request,
    run,
    same,
)
from tests.engine.helpers.known_drafts import WAYS, Bushy, Oracle, Scripted

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("slots", [4, 16])
def test_batched_equals_single_on_f32(tiny_gguf: str, slots: int) -> None:
    requests = [request(f"r{i}", p) for i, p in enumerate(prompts(32))]
    batched = completions(run(fresh(tiny_gguf, slots=slots, kv_cells=4096), requests))
    for name, reference in alone(tiny_gguf, requests).items():
        assert batched[name].tokens == reference.tokens


@pytest.mark.parametrize("prefill_chunk", [1, 50, 256])
@pytest.mark.parametrize("sharing", [False, True])
def test_chunks_of_prompts_keep_every_token_on_f32(tiny_gguf: str, prefill_chunk: int, sharing: bool) -> None:
    """Prompts that share calls, or are spread over several; some are too long for a lane."""
    texts = [" ".join(WORDS * (i + 2)) for i in range(6)] + [f"{i} " + " ".join(WORDS * 4) for i in range(3)]
    requests = [request(f"r{i}", text, max_tokens=12) for i, text in enumerate(texts)]
    small = alone(tiny_gguf, requests, prefill_chunk=1)
    engine = fresh(tiny_gguf, slots=6, kv_cells=768, prefill_chunk=prefill_chunk, prefix_sharing=sharing)
    assert engine.layouts.lanes
    assert engine.layouts.lanes.largest < max(len(engine.encode(r)) for r in requests)
    results = completions(run(engine, requests))
    assert any(c.cached_tokens for c in results.values()) == sharing
    for name in small:
        assert results[name].tokens == small[name].tokens


def test_rows_that_fill_calls_of_short_prompts_change_nothing_on_f32(tiny_gguf: str) -> None:
    texts = ["".join(random.Random(i).choices("abcdefgh", k=30 + i * 5 % 7)) for i in range(16)]
    requests = [request(f"r{i}", text, max_tokens=8, logprobs=2) for i, text in enumerate(texts)]
    reference = alone(tiny_gguf, requests)
    engine = fresh(tiny_gguf, slots=16, kv_cells=4096)
    for each in requests:
        engine.add(engine.prepare(each, 0.0))
    filling, results = 0, dict[str, Completion]()
    while not engine.idle:
        report = engine.step()
        filling += report.rows - report.prompt_rows - report.ready
        assert not report.failed, "llama.cpp takes no second row of one position"
        for ended in report.ended:
            assert isinstance(ended.outcome, Completion)
            results[ended.request_id] = ended.outcome
    assert filling > 16
    for name in reference:
        close(results[name], reference[name])


DRAFTS = pytest.mark.parametrize(("right", "wrong"), WAYS)


@DRAFTS
@pytest.mark.parametrize("slots", [1, 8, 32])
def test_drafted_equals_undrafted_on_f32(tiny_gguf: str, right: int, wrong: int, slots: int) -> None:
    requests = [request(f"r{i}", p, max_tokens=20) for i, p in enumerate(prompts(max(12, slots)))]
    reference = alone(tiny_gguf, requests)
    drafts = Scripted({n: c.tokens for n, c in reference.items()}, [(right, wrong)], 300)
    steps: list[int] = []
    drafted = completions(run(fresh(tiny_gguf, drafts, slots=slots, kv_cells=4096), requests, steps.append))
    plain_steps: list[int] = []
    run(fresh(tiny_gguf, slots=slots, kv_cells=4096), requests, plain_steps.append)
    for name in reference:
        assert drafted[name].tokens == reference[name].tokens
    if right >= 2 and slots < 32:  # where the call has room for all drafts
        assert len(steps) < 0.7 * len(plain_steps)


@pytest.mark.parametrize("spare", range(4))
def test_drafts_up_to_the_last_cell_of_the_context(tiny_gguf: str, spare: int) -> None:
    """The prompt and max_tokens fill the context but for `spare`, and every draft is right."""
    engine = fresh(tiny_gguf, slots=1, kv_cells=128)
    context = engine.info.context_length
    prompt = engine.encode(request("r", WORDS[0] * 20, max_tokens=1))
    requests = [request("r", WORDS[0] * 20, max_tokens=context - len(prompt) - spare)]
    reference = alone(tiny_gguf, requests, kv_cells=128)
    drafts = Scripted({n: c.tokens for n, c in reference.items()}, [(4, 0)], 300)
    steps: list[int] = []
    drafted = completions(run(fresh(tiny_gguf, drafts, slots=1, kv_cells=128), requests, steps.append))
    same(drafted["r"], reference["r"])
    assert drafted["r"].finish_reason is FinishReason.LENGTH
    assert len(drafted["r"].tokens) + len(prompt) == context - spare
    assert len(steps) < len(drafted["r"].tokens) / 3


@pytest.mark.parametrize("slots", [1, 3, 8])
@pytest.mark.parametrize("seed", range(2))
def test_trees_equal_undrafted_on_f32(tiny_gguf: str, seed: int, slots: int) -> None:
    texts = prompts(32, seed=seed)
    family = " ".join(WORDS)
    requests = [
        request(f"r{i}", family * (i % 3 == 0) + p, max_tokens=20, temperature=(i % 3) * 0.7, seed=i)
        for i, p in enumerate(texts)
    ]
    reference = alone(tiny_gguf, requests)
    drafts = Bushy({n: c.tokens for n, c in reference.items()}, 300, seed)
    engine = fresh(tiny_gguf, drafts, slots=slots, kv_cells=1500)
    engine.scheduler.few = FEW
    results = completions(run(engine, requests))
    for name in reference:
        same(results[name], reference[name])
    assert drafts.accepted > 100
    assert drafts.branched > (50 if slots == 1 else 0) or slots > FEW


def test_trees_survive_failed_decodes_and_cancels(tiny_gguf: str) -> None:
    requests = [request(f"r{i}", p, max_tokens=20) for i, p in enumerate(prompts(20, seed=9))]
    reference = alone(tiny_gguf, requests)
    engine = fresh(
        tiny_gguf, Bushy({n: c.tokens for n, c in reference.items()}, 300, 1), slots=6, kv_cells=600
    )
    failed: list[int] = []

    def fail_at_times(calls: int) -> None:
        if calls in (3, 20, 41):
            failed.append(calls)
            raise DecodeError(-3)

    on_decode(engine, fail_at_times)
    results = completions(run(engine, requests, lambda step: engine.cancel("r7") if step == 25 else None))
    for name, result in results.items():
        assert result.tokens == reference[name].tokens[: len(result.tokens)]
        assert result.finish_reason in (FinishReason.LENGTH, FinishReason.CANCELLED)
    assert len(failed) == 3


@pytest.mark.parametrize("length", range(1, 9))
def test_ends_at_every_offset_of_an_accepted_run(tiny_gguf: str, length: int) -> None:
    """max_tokens, a stop token and a stop string inside a run of accepted drafts cut at the same place."""
    prompt = "cabbage jade fade"
    whole = alone(tiny_gguf, [request("r", prompt, max_tokens=12)])["r"]
    drafts = Scripted({"r": whole.tokens}, [(8, 0)], 300)
    assert whole.text[length:], "there is something to stop at"
    for ending in (
        {"max_tokens": length},
        {"max_tokens": 12, "stop_token_ids": (whole.tokens[length],)},
        {"max_tokens": 12, "stop": (whole.text[length : length + 2],)},
    ):
        r = request("r", prompt, logprobs=2, **ending)
        result = completions(run(fresh(tiny_gguf, drafts), [r]))["r"]
        close(result, alone(tiny_gguf, [r])["r"])
        assert result.steps < result.completion_tokens or result.completion_tokens == 1
        stood = sum(drafted.accepted for drafted in result.drafted.values())
        assert stood <= result.completion_tokens - result.steps + 1, "none beyond the end"


def test_the_models_own_end_at_every_offset_of_an_accepted_run(tiny_gguf: str) -> None:
    """Sampled with a bias towards the end, so that it comes after 0 to 7 tokens, by the seed."""
    requests = [
        request(
            f"r{i}",
            "badge",
            max_tokens=12,
            ignore_eos=False,
            logit_bias={2: 8.0},
            temperature=1.5,
            seed=i,
            logprobs=2,
        )
        for i in range(60)
    ]
    reference = alone(tiny_gguf, requests)
    ended = [c for c in reference.values() if c.finish_reason is FinishReason.STOP]
    assert {len(c.tokens) for c in ended} >= set(range(1, 8))
    end_and_beyond = (2, 70, 71)
    drafts = Oracle({n: c.tokens + end_and_beyond for n, c in reference.items()})
    results = completions(run(fresh(tiny_gguf, drafts, slots=4), requests))
    for name in reference:
        close(results[name], reference[name])


EURO = (3 + 0xE2, 3 + 0x82, 3 + 0xAC)  # byte tokens of one character


@pytest.mark.parametrize("length", range(1, 10))
def test_a_split_character_at_every_offset_of_an_accepted_run(tiny_gguf: str, length: int) -> None:
    """Only bytes of one three-byte character are ever chosen: right and wrong orders of them."""
    requests = [
        request(
            f"r{i}",
            "ice",
            max_tokens=length,
            temperature=1.5,
            logit_bias=dict.fromkeys(EURO, 100.0),
            seed=i,
            logprobs=2,
        )
        for i in range(12)
    ]
    reference = alone(tiny_gguf, requests)
    drafts = Oracle({n: c.tokens for n, c in reference.items()})
    results = completions(run(fresh(tiny_gguf, drafts, slots=4), requests))
    for name in reference:
        close(results[name], reference[name])
        assert set(results[name].tokens) <= set(EURO)


@pytest.mark.parametrize("drafted", [False, True])
def test_random_arrivals_cancels_and_a_full_cache_equal_the_reference(tiny_gguf: str, drafted: bool) -> None:
    """With drafts also random trees, and decode calls that fail."""
    rng = random.Random(3)
    family = " ".join(WORDS * 2) + " "
    texts = [(family if i % 3 else "") + p for i, p in enumerate(prompts(60, seed=4))]
    requests = [
        request(f"r{i}", t, max_tokens=rng.randint(1, 40), temperature=rng.choice([0, 0.9]), seed=i)
        for i, t in enumerate(texts)
    ]
    reference = alone(tiny_gguf, requests)
    drafts = Bushy({n: c.tokens for n, c in reference.items()}, 300, 2) if drafted else None
    engine = fresh(tiny_gguf, drafts, slots=6, kv_cells=700)
    late = requests[5:]
    cancelled: set[str] = set()
    failures = break_decode(engine, rng, 0.01) if drafted else []
    waited_for_cells = 0

    def disturb(_step: int) -> None:
        nonlocal waited_for_cells
        waited_for_cells += engine.scheduler.waiting > 0 and len(engine.scheduler.running) < 6
        while late and rng.random() < 0.5:
            r = late.pop(0)
            engine.add(engine.prepare(r, 0.0))
        if rng.random() < 0.1:
            victim = rng.choice(requests).id
            if engine.cancel(victim):
                cancelled.add(victim)

    results = completions(run(engine, requests[:5], disturb))
    while late:
        results |= completions(run(engine, [late.pop(0)], disturb))
    assert len(results) == len(requests)
    assert cancelled
    assert bool(failures) == drafted
    assert waited_for_cells > 10, "the cache was full while slots were free"
    assert sum(c.cached_tokens for c in results.values()) > 500
    for name, result in results.items():
        whole = reference[name]
        if result.finish_reason is FinishReason.CANCELLED:
            assert name in cancelled
            assert result.tokens == whole.tokens[: len(result.tokens)]
            assert whole.text.startswith(result.text)
        else:
            same(result, whole)
