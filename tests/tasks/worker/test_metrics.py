"""The figures of an engine, as Prometheus takes them."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from engine import Completion, Drafted, EngineMetrics, FinishReason, ModelInfo, Timing
from engine.core.engine import StepReport
from engine.core.sequence import Ended
from engine.serving.metrics import Metrics
from tasks.base.telemetry.metrics import ProcessMetrics
from tasks.worker.metrics import EngineCollector

INFO = ModelInfo("tiny", "tiny.gguf", 512, slots=4, kv_cells=1024, batch_invariant=False, quantization="F32")


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
    collector = EngineCollector("tiny", INFO, metrics.snapshot)
    left = ProcessMetrics.from_json(ProcessMetrics("worker", "w1", tuple(collector.collect())).to_json())
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


def published(metrics: EngineMetrics) -> dict[tuple[object, ...], float]:
    samples = [
        s for family in EngineCollector("tiny", INFO, lambda: metrics).collect() for s in family.samples
    ]
    found = {(s.name, *s.labels.values()): s.value for s in samples}
    assert len(found) == len(samples), "each has a name of its own"
    return found


def test_everything_that_an_engine_tells_is_published() -> None:
    """And with slots and kv_cells nothing else."""
    nothing = Metrics(slots=4).snapshot()
    before = published(nothing)
    told = set()
    for field in fields(EngineMetrics):
        if isinstance(getattr(nothing, field.name), int | float):
            after = published(replace(nothing, **{field.name: 77}))
            [changed] = [name for name in before if before[name] != after[name]]
            told.add(changed)
    left = {name for name, *_ in before.keys() - told}
    lengths = {f"medusaq_request_tokens_per_step_{kind}" for kind in ("bucket", "count", "sum")}
    assert left == {"medusaq_slots", "medusaq_kv_cells", *lengths}
    assert before["medusaq_slots", "tiny"] == 4
    assert before["medusaq_kv_cells", "tiny"] == 1024
