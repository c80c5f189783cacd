"""/metrics: a worker's numbers as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine import Completion, Drafted, FinishReason, Timing
from engine.engine import StepReport
from engine.metrics import Metrics
from engine.sequence import Ended
from tasks.registry import Registry, WorkerInfo
from tasks.settings import Settings
from tasks.store import JobStore
from tests.api.conftest import GatewayProcess


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


@pytest.fixture
def own_store(gateway_settings: Settings) -> Iterator[JobStore]:
    store = JobStore(gateway_settings)
    yield store
    store.close()


@pytest.fixture
def worker(own_store: JobStore) -> WorkerInfo:
    """What a worker would say after two requests, put where a gateway looks."""
    metrics = Metrics(slots=4)
    ended = [
        Ended("a", completion(10, 10)),
        Ended("b", completion(10, 24, medusa=Drafted(20, 11), lookup=Drafted(4, 3))),
    ]
    metrics.observe(StepReport(ended=ended, running=2, ready=2, rows=26, emitted=16, verified=24), 0.05)
    info = WorkerInfo("w1", "tiny", 2048, 4, 1, "here", 0.0, {}, metrics.snapshot())
    Registry(own_store, 60).refresh(info)
    return info


def test_counters_gauges_and_histograms(gateway: GatewayProcess, worker: WorkerInfo) -> None:
    answer = gateway.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    samples = {
        (s.name, s.labels.get("source"), s.labels.get("le")): s.value
        for family in text_string_to_metric_families(answer.text)
        for s in family.samples
        if s.labels["worker"] == worker.id
    }
    assert samples["medusaq_generated_tokens_total", None, None] == 16
    assert samples["medusaq_tokens_per_step", None, None] == 8
    assert samples["medusaq_verified_tokens_total", "medusa", None] == 20
    assert samples["medusaq_accepted_tokens_total", "lookup", None] == 3
    assert samples["medusaq_request_tokens_per_step_bucket", None, "1.0"] == 1
    assert samples["medusaq_request_tokens_per_step_bucket", None, "3.0"] == 2
    assert samples["medusaq_request_tokens_per_step_bucket", None, "+Inf"] == 2
    assert samples["medusaq_request_tokens_per_step_count", None, None] == 2
    assert samples["medusaq_request_tokens_per_step_sum", None, None] == pytest.approx(3.4)
    assert samples["medusaq_acceptance_bucket", "medusa", "0.5"] == 0
    assert samples["medusaq_acceptance_bucket", "medusa", "0.6"] == 1
    assert samples["medusaq_acceptance_sum", "lookup", None] == pytest.approx(0.75)
    assert {key for key in worker.metrics if "prefix_hit" in key}, "all others are there too"
    assert ("medusaq_prefix_hit_rate", None, None) in samples


def test_a_worker_that_left_says_nothing(
    gateway: GatewayProcess, own_store: JobStore, worker: WorkerInfo
) -> None:
    Registry(own_store, 60).leave(worker.id)
    assert worker.id not in gateway.http.get("/metrics").text
