"""The figures of an engine, as Prometheus takes them."""

from __future__ import annotations

import pytest

from engine import Completion, Drafted, FinishReason, Timing
from engine.engine import StepReport
from engine.metrics import Metrics
from engine.sequence import Ended
from tasks.figures import Figures
from tasks.worker_figures import ENGINE, EngineCollector


def completion(steps: int, tokens: int, **drafted: Drafted) -> Completion:
    return Completion(
        request_id="-",
        text="",
        tokens=(),
        finish_reason=FinishReason.STOP,
        prompt_tokens=7,
        cached_tokens=2,
        completion_tokens=tokens,
        timing=Timing(0.0, 0.0, 1.0),
        steps=steps,
        drafted=drafted,
    )


def test_an_engines_counters_gauges_and_histograms() -> None:
    """After two requests, through Redis and back."""
    metrics = Metrics(slots=4)
    ended = [
        Ended("a", completion(10, 10)),
        Ended("b", completion(10, 24, medusa=Drafted(20, 11), lookup=Drafted(4, 3))),
    ]
    metrics.observe(StepReport(ended=ended, running=2, ready=2, rows=26, emitted=16, verified=24), 0.05)
    collector = EngineCollector("tiny", metrics.snapshot)
    left = Figures.loaded(Figures("worker", "w1", tuple(collector.collect())).dumped())
    assert (left.service, left.worker) == ("worker", "w1")
    samples = {
        (s.name, s.labels.get("source"), s.labels.get("le")): s.value
        for family in left.families
        for s in family.samples
        if s.labels["model"] == "tiny"
    }
    assert samples["medusaq_generated_tokens_total", None, None] == 16
    assert samples["medusaq_tokens_per_step", None, None] == 8
    assert samples["medusaq_step_requests_total", None, None] == 2
    assert samples["medusaq_step_seconds", None, None] == pytest.approx(0.05)
    assert samples["medusaq_verified_tokens_total", "medusa", None] == 20
    assert samples["medusaq_accepted_tokens_total", "lookup", None] == 3
    assert samples["medusaq_request_tokens_per_step_bucket", None, "1.0"] == 1
    assert samples["medusaq_request_tokens_per_step_bucket", None, "3.0"] == 2
    assert samples["medusaq_request_tokens_per_step_bucket", None, "+Inf"] == 2
    assert samples["medusaq_request_tokens_per_step_count", None, None] == 2
    assert samples["medusaq_request_tokens_per_step_sum", None, None] == pytest.approx(3.4)
    assert samples["medusaq_acceptance_ratio_bucket", "medusa", "0.5"] == 0
    assert samples["medusaq_acceptance_ratio_bucket", "medusa", "0.6"] == 1
    assert samples["medusaq_acceptance_ratio_sum", "lookup", None] == pytest.approx(0.75)
    assert samples["medusaq_prefix_hit_ratio", None, None] == pytest.approx(2 / 7)


def test_every_figure_of_an_engine_has_a_name_of_its_own() -> None:
    assert set(Metrics(slots=4).snapshot()) - set(ENGINE) <= {
        key for key in Metrics(slots=4).snapshot() if key.startswith("request_tokens_per_step_")
    }
    assert len({name for name, _, _ in ENGINE.values()}) == len(ENGINE)
