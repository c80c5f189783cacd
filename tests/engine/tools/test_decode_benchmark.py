"""The decode benchmark: what it counts, how pairs are made, and the bound it gives."""

from __future__ import annotations

import numpy as np
import pytest

from engine import Decoding, EngineConfig
from engine.core.engine import Engine, StepReport
from engine.speculative.controller import Speculation
from engine.speculative.prompt_lookup import MAX_DRAFTS, LookupSource
from engine.tools.decode_benchmark import (
    ALL,
    LEAST_PAIRS,
    DecodeBenchmark,
    Mode,
    Pair,
    Pairs,
    Pass,
    Prompt,
    blocks,
    run_in_turns,
)
from tests.engine.helpers.drive import fresh
from tests.support.measuring.profiles import flat

PROMPTS = [Prompt(f"kind {i % 3}", f"abcabcabcabc {i} abcabc") for i in range(7)]


def made(tokens: int, seconds: float, steps: int = 10) -> Pass:
    return Pass(seconds=seconds, tokens=tokens, steps=steps)


def pairs_of(passes: list[tuple[Pass, Pass]], requests: int = 1, drafting: list[int] | None = None) -> Pairs:
    """drafting: which engine in each; the same in all unless given."""
    engines = drafting or [0] * len(passes)
    pairs = [Pair(plain, auto, engine) for (plain, auto), engine in zip(passes, engines, strict=True)]
    return Pairs(requests, ALL, pairs, {"a", "b"})


def test_rows_hold_ratios_of_sums() -> None:
    pairs = pairs_of([(made(100, 10.0), made(100, 5.0)), (made(300, 10.0), made(330, 10.0))], requests=2)
    row = pairs.row()
    assert (row.plain_tokens_per_s, row.tokens_per_s) == (pytest.approx(20.0), pytest.approx(430 / 15))
    assert row.ratio == pytest.approx(430 / 15 / 20)
    # One pair is as good as the other: the worse alone (1.1) is drawn a quarter of the times, and two pairs
    # spread half as far again as they show.
    worse, ratio = 330 / 10 / (300 / 10), row.ratio
    assert row.ratio_low == pytest.approx(ratio - (ratio - worse) * 2**0.5, abs=0.05)
    assert (row.n_prompts, row.requests, row.category) == (2, 2, "all")
    assert row.tokens_per_step == pytest.approx(430 / 20)


def test_equal_pairs_leave_no_doubt() -> None:
    row = pairs_of([(made(100, 10.0), made(100, 8.0))] * 5).row()
    assert row.ratio_low == pytest.approx(row.ratio) == pytest.approx(1.25)


def test_a_slower_engine_is_no_uncertainty_when_both_drafted_as_often() -> None:
    slower, faster = (made(100, 10.0), made(100, 9.0)), (made(100, 9.0), made(100, 10.0))
    both = pairs_of([slower, faster] * 4, drafting=[0, 1] * 4).row()
    assert both.ratio_low == pytest.approx(both.ratio) == pytest.approx(1.0)
    assert pairs_of([slower, faster] * 4).row().ratio_low < 0.97, "were it not known which engine drafted"


@pytest.mark.parametrize("drafting", [[0] * 40, [0, 1] * 20, [0, 1] * 4])
@pytest.mark.slow
def test_the_bound_lies_below_the_truth_nineteen_times_in_twenty(drafting: list[int]) -> None:
    rng, truth, below = np.random.default_rng(5), 1.2, 0
    for _ in range(200):
        noise = rng.lognormal(0.0, 0.1, size=(len(drafting), 2))
        passes = [(made(100, 10.0 * a), made(100, 10.0 / truth * b)) for a, b in noise]
        below += pairs_of(passes, drafting=drafting).row().ratio_low < truth
    assert 0.89 < below / 200 < 0.99


def test_what_is_outside_is_counted_on_drafted_steps_alone() -> None:
    auto = Pass()
    auto.note(StepReport(ready=1, emitted=1, decode_s=0.5), 1.0)
    auto.note(StepReport(ready=1, emitted=3, verified=4, accepted=2, decode_s=0.9), 1.0)
    assert pairs_of([(made(1, 1.0), auto)]).outside() == pytest.approx(0.1)
    assert (auto.tokens, auto.steps, auto.verified, auto.accepted) == (4, 2, 4, 2)


def test_blocks_cover_every_prompt_and_every_category_often_enough() -> None:
    ones = blocks(PROMPTS, 1)
    assert all(len(block) == 1 for block in ones)
    for kind in {prompt.category for prompt in PROMPTS}:
        assert sum(block[0].category == kind for block in ones) >= LEAST_PAIRS
    fours = blocks(PROMPTS, 4)
    assert len(fours) == LEAST_PAIRS
    assert all(len(block) == 4 for block in fours)
    assert {prompt for block in fours for prompt in block} == set(PROMPTS)
    assert len(blocks(PROMPTS * 10, 2)) == 35


@pytest.mark.parametrize("requests", [1, 3])
def test_both_sides_are_measured_on_a_real_model(
    tiny_gguf: str, requests: int, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    benchmark = DecodeBenchmark(
        EngineConfig(model=tiny_gguf, slots=4, kv_cells=2048, kv_type="f32", prefix_sharing=False), 24
    )
    calls: list[tuple[int, int]] = []
    measured = benchmark.measure(PROMPTS, requests, lambda done, of: calls.append((done, of)))
    assert calls[-1][0] == calls[-1][1] == len(calls)
    names = {pairs.category for pairs in measured}
    assert names == ({ALL} if requests > 1 else {ALL, "kind 0", "kind 1", "kind 2"})
    for pairs in measured:
        row = pairs.row()
        assert row.requests == requests
        assert row.plain_tokens_per_s > 0
        assert row.tokens_per_s > 0
        assert row.ratio_low > 0
        assert 1 <= row.tokens_per_step <= 1 + MAX_DRAFTS
        assert 0 <= row.acceptance <= 1
        for pair in pairs.pairs:
            assert pair.plain.verified == 0
            assert pair.plain.steps == pair.plain.tokens
            assert not pair.plain.verified_of
            assert sum(pair.auto.verified_of.values()) >= pair.auto.verified
            assert sum(pair.auto.accepted_of.values()) >= pair.auto.accepted
    assert all(engine.idle for engine in benchmark.engines)
    assert set(next(iter(measured)).row().json()) == {
        "requests",
        "category",
        "plain_tokens_per_s",
        "tokens_per_s",
        "ratio",
        "ratio_low",
        "tokens_per_step",
        "acceptance",
        "n_prompts",
    }


@pytest.mark.usefixtures("no_time_passes")
def test_each_engine_keeps_to_its_mode(tiny_gguf: str) -> None:
    first = fresh(tiny_gguf, slots=1, kv_cells=512, prefix_sharing=False)
    config = EngineConfig(model=tiny_gguf, slots=1, kv_cells=512, kv_type="f32", prefix_sharing=False)
    engines = [first, *(Engine(config, first.model) for _ in range(2))]

    def drafting(decoding: Decoding) -> Mode:
        return Mode(Speculation(flat(), [LookupSource()]), ("lookup",), decoding)

    modes = [drafting(Decoding.NORMAL), drafting(Decoding.AUTO), Mode()]
    normal, auto, plain = run_in_turns(engines, modes, ["abcabcabcabc" * 4], 1, 48)
    assert auto.verified_of["lookup"] > 0
    for one in (normal, plain):
        assert not one.verified_of
        assert one.tokens == one.steps == 47, "the first token is of the step with the prompt"


def test_both_engines_take_both_parts(
    tiny_gguf: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One may be slower by where its memory lies, which must not count for or against drafts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    config = EngineConfig(model=tiny_gguf, slots=2, kv_cells=2048, prefix_sharing=False)
    benchmark = DecodeBenchmark(config, 8)
    drafting: list[int] = []
    step = Engine.step

    def watched(engine: Engine) -> StepReport:
        if engine.draft_source.name:
            drafting.append(benchmark.engines.index(engine))
        return step(engine)

    monkeypatch.setattr(Engine, "step", watched)
    parts: list[int] = []

    def after(done: int, of: int) -> None:  # noqa: ARG001
        parts.append(drafting[0])
        assert set(drafting) == {drafting[0]}, "within a pair they do not change"
        drafting.clear()

    [*_] = benchmark.measure(PROMPTS[:1], 1, after)
    assert parts.count(0) == parts.count(1) == LEAST_PAIRS // 2
