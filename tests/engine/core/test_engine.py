"""Life inside the engine: joining, leaving, waiting, failing, and what a result says of itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from engine import DecodeFailed, FinishReason, RequestRefused
from engine.core import layout_setup
from engine.core.engine import Engine
from engine.llama.context import Context, DecodeError, Outputs, Rows
from tests.engine.helpers.drive import (
    alone,
    check_cache,
    completions,
    fresh,
    prompts,
    request,
    run,
    same,
    submit,
)


@pytest.fixture
def engine(tiny_gguf: str) -> Engine:
    return fresh(tiny_gguf)


def test_requests_join_and_leave_at_every_step(engine: Engine) -> None:
    submit(engine, request("long", "abc", max_tokens=30))
    for _ in range(5):
        engine.step()
    submit(engine, request("short", "bead", max_tokens=3))
    order = list(run(engine))
    assert order == ["short", "long"]


def test_a_request_that_can_never_fit_is_refused_with_the_field(engine: Engine) -> None:
    with pytest.raises(RequestRefused) as refused:
        engine.encode(request("r", "abc " * 600))
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "prompt")
    with pytest.raises(RequestRefused) as refused:
        engine.encode(request("r", "abc", max_tokens=5000))
    assert refused.value.param == "max_tokens"
    assert "5000" in refused.value.message
    assert "1024" in refused.value.message


def test_others_wait_for_cells_and_none_is_aborted(tiny_gguf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_setup, "lane_cells", lambda *_: 0)
    engine = fresh(tiny_gguf, slots=8, kv_cells=512, prefix_sharing=False)
    requests = [request(f"r{i}", p, max_tokens=60) for i, p in enumerate(prompts(12))]
    running: list[int] = []
    results = completions(run(engine, requests, lambda _: running.append(len(engine.scheduler.running))))
    assert len(results) == 12
    assert {c.finish_reason for c in results.values()} == {FinishReason.LENGTH}
    assert 1 < max(running) < 8


def test_prefill_never_stalls_running_requests(tiny_gguf: str) -> None:
    """While a long prompt comes in, a running request gets a token at every step."""
    engine = fresh(tiny_gguf, prefill_chunk=64)
    submit(engine, request("running", "abc", max_tokens=40))
    engine.step()
    submit(engine, request("long", "abc def " * 100, max_tokens=2))
    running = engine.scheduler.running[0]
    steps = 0
    while not any(e.request_id == "long" for e in engine.step().ended):
        steps += 1
        assert running.length == running.prompt_length + 1 + steps
    assert steps >= 5


def test_cancel_is_obeyed_within_two_steps_and_keeps_the_text(engine: Engine, tiny_gguf: str) -> None:
    r = request("r", "cabbage", max_tokens=200)
    submit(engine, r, request("other", "bead", max_tokens=50))
    for _ in range(20):
        engine.step()
    assert engine.cancel("r")
    ended = [e for _ in range(2) for e in engine.step().ended]
    (result,) = completions({e.request_id: e.outcome for e in ended}).values()
    assert result.finish_reason is FinishReason.CANCELLED
    assert 15 < result.completion_tokens == len(result.tokens)
    whole = alone(tiny_gguf, [replace(r, sampling=replace(r.sampling, max_tokens=40))])["r"]
    assert result.tokens == whole.tokens[: len(result.tokens)]
    assert not engine.cancel("r")
    assert completions(run(engine))["other"].finish_reason is FinishReason.LENGTH


def test_cancel_while_waiting(tiny_gguf: str) -> None:
    engine = fresh(tiny_gguf, slots=1)
    submit(engine, request("first", "abc", max_tokens=50), request("second", "bead"))
    engine.step()
    engine.cancel("second")
    (ended,) = engine.step().ended
    (result,) = completions({ended.request_id: ended.outcome}).values()
    assert (result.request_id, result.text, result.completion_tokens) == ("second", "", 0)


def test_deadline_is_obeyed_within_two_steps(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    deadline = time.time() + 3600
    submit(engine, replace(request("r", "cabbage", max_tokens=900), deadline=deadline))
    assert not [e for _ in range(3) for e in engine.step().ended]
    monkeypatch.setattr(time, "time", lambda: deadline)
    ended = [e for _ in range(2) for e in engine.step().ended]
    (result,) = completions({e.request_id: e.outcome for e in ended}).values()
    assert result.finish_reason is FinishReason.EXPIRED
    assert result.completion_tokens > 0


class FailingDecodes:
    """Makes decode calls of an engine fail, as llama.cpp would, at a call or at a token."""

    def __init__(self, engine: Engine) -> None:
        self.calls = 0
        self.fail_on_call: int | None = None
        self.fail_on_token: int | None = None
        self.fail_in_company = False
        for layout in (engine.layouts.shared, engine.layouts.lanes):
            if layout:
                layout.context.decode = self.failing(layout.context)  # type: ignore[method-assign]

    def failing(self, context: Context) -> Callable[..., Outputs]:
        decode = context.decode

        def decode_or_fail(rows: Rows, hidden: bool = False) -> Outputs:
            self.calls += 1
            outputs = decode(rows, hidden)  # the cells are filled, as after a failure half-way
            in_company = self.fail_in_company and len(np.unique(rows.seq_ids)) > 1
            if self.calls == self.fail_on_call or self.fail_on_token in rows.tokens or in_company:
                raise DecodeError(-3)
            return outputs

        return decode_or_fail


@pytest.mark.parametrize("call", [1, 2, 5, 17])
def test_a_failed_decode_is_recovered_and_changes_nothing(tiny_gguf: str, call: int) -> None:
    requests = [request(f"r{i}", p) for i, p in enumerate(prompts(6))]
    reference = alone(tiny_gguf, requests)
    engine = fresh(tiny_gguf)
    FailingDecodes(engine).fail_on_call = call
    results = completions(run(engine, requests))
    for name in reference:
        same(results[name], reference[name])


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_failed_prefill_is_recovered_and_changes_nothing(tiny_gguf: str, call: int) -> None:
    requests = [request(f"r{i}", f"{i}" + "cabbage jade " * 8) for i in range(4)]
    reference = alone(tiny_gguf, requests)
    engine = fresh(tiny_gguf, prefill_chunk=64)
    failing = FailingDecodes(engine)
    failing.fail_on_call = call
    results = completions(run(engine, requests))
    assert failing.calls > call
    for name in reference:
        assert results[name].tokens == reference[name].tokens


def test_a_request_cancelled_in_prefill_leaves_no_trace(tiny_gguf: str) -> None:
    requests = [request(f"r{i}", f"{i}" + "cabbage jade " * 12) for i in range(2)]
    reference = alone(tiny_gguf, requests)
    engine = fresh(tiny_gguf, prefill_chunk=64)
    submit(engine, *requests)
    engine.step()
    assert 0 < engine.scheduler.running[0].computed < engine.scheduler.running[0].length - 1
    engine.cancel("r0")
    results = completions(run(engine))
    assert results["r0"].finish_reason is FinishReason.CANCELLED
    assert results["r1"].tokens == reference["r1"].tokens


def test_a_failing_request_takes_no_other_with_it(tiny_gguf: str) -> None:
    good = [request(f"r{i}", p) for i, p in enumerate(prompts(3))]
    reference = alone(tiny_gguf, good)
    engine = fresh(tiny_gguf)
    bad = request("bad", "Z")
    poison = int(engine.encode(bad)[-1])
    FailingDecodes(engine).fail_on_token = poison
    assert all(poison not in engine.encode(r) and poison not in reference[r.id].tokens for r in good)
    outcomes = run(engine, [*good, bad])
    assert isinstance(outcomes.pop("bad"), DecodeFailed)
    for name, result in completions(outcomes).items():
        same(result, reference[name])


def test_requests_that_fail_in_company_alone_are_run_apart_to_their_ends(tiny_gguf: str) -> None:
    requests = [request(f"r{i}", p) for i, p in enumerate(prompts(3))]
    reference = alone(tiny_gguf, requests)
    engine = fresh(tiny_gguf)
    failing = FailingDecodes(engine)
    failing.fail_in_company = True
    results = completions(run(engine, requests))
    for name, result in results.items():
        same(result, reference[name])
    calls = sum(c.completion_tokens for c in reference.values())
    assert failing.calls < 1.5 * calls, "they do not try each other's company for ever"


def test_faults_now_and_then_keep_no_request_apart_for_good(tiny_gguf: str) -> None:
    requests = [request(f"r{i}", p, max_tokens=90) for i, p in enumerate(prompts(3))]
    reference = alone(tiny_gguf, requests)
    engine = fresh(tiny_gguf)
    failing = FailingDecodes(engine)
    together: list[bool] = []

    def disturb(step: int) -> None:
        if step in (10, 25, 40, 55):
            failing.fail_on_call = failing.calls + 1
        if 70 <= step < 80:
            together.append(not any(s.quarantined for s in engine.scheduler.running))

    results = completions(run(engine, requests, disturb))
    assert together == [True] * 10
    for name, result in results.items():
        same(result, reference[name])


def test_logits_without_a_number_end_only_their_request(tiny_gguf: str) -> None:
    engine = fresh(tiny_gguf)
    assert engine.layouts.lanes
    context = engine.layouts.lanes.context
    decode = context.decode

    def spoil(rows: Rows, hidden: bool = False) -> Outputs:
        logits = decode(rows, hidden).logits.copy()
        if len(logits) == 2:
            logits[1] = float("nan")
        return Outputs(logits, None)

    context.decode = spoil  # type: ignore[method-assign]
    outcomes = run(engine, [request("good", "abc"), request("bad", "bead")])
    bad = outcomes.pop("bad")
    assert isinstance(bad, DecodeFailed)
    assert bad.code == "invalid_logits"
    assert completions(outcomes)["good"].finish_reason is FinishReason.LENGTH


def test_shared_instruction_is_computed_once(tiny_gguf: str) -> None:
    """Live, while the first of them is still in prefill, and shortly after they have ended."""
    instruction = "cafe dig edge fade gig hide ice jade badge " * 3
    family = [request(f"r{i}", instruction + p, max_tokens=4) for i, p in enumerate(prompts(8))]
    reference = alone(tiny_gguf, family)
    length = len(fresh(tiny_gguf).encode(request("i", instruction)))
    engine = fresh(tiny_gguf)
    results = completions(run(engine, family[:6]))
    assert sum(c.cached_tokens >= length - 2 for c in results.values()) == 5
    results |= completions(run(engine, family[6:]))
    assert all(results[r.id].cached_tokens >= length - 2 for r in family[6:])
    for name in reference:
        same(results[name], reference[name])


def test_usage_and_finish_reasons(tiny_gguf: str) -> None:
    whole = alone(tiny_gguf, [request("r", "cabbage", max_tokens=10, logprobs=2)])["r"]
    assert whole.finish_reason is FinishReason.LENGTH
    assert whole.completion_tokens == len(whole.tokens) == len(whole.logprobs or ()) == 10
    assert all(t.top[0][2] == t.logprob for t in whole.logprobs or ())
    stop = whole.tokens[4]
    first = whole.tokens.index(stop)
    ended = alone(tiny_gguf, [request("r", "cabbage", max_tokens=10, stop_token_ids=(stop,))])["r"]
    assert ended.finish_reason is FinishReason.STOP
    assert ended.tokens == whole.tokens[:first]
    assert ended.completion_tokens == first + 1
    assert (whole.end_token, ended.end_token) == (None, stop)


@pytest.mark.slow
def test_generation_ends_at_the_models_own_end() -> None:
    r = replace(request("r", "Say OK.", max_tokens=60, ignore_eos=False), raw=False)
    result = alone(None, [r])["r"]
    assert result.finish_reason is FinishReason.STOP
    assert result.completion_tokens == len(result.tokens) + 1
    assert result.end_token is not None
    assert result.end_token not in result.tokens
    assert "<|im_end|>" not in result.text


def test_a_full_house_leaves_the_caches_clean(tiny_gguf: str) -> None:
    engine = fresh(tiny_gguf, slots=8, kv_cells=512, prefix_cache_bytes=100_000)
    run(engine, [request(f"r{i}", p, max_tokens=20) for i, p in enumerate(prompts(40))])
    check_cache(engine)
    assert engine.layouts.used == 0
    assert 0 < engine.scheduler._prefix_cache.nbytes <= 100_000
