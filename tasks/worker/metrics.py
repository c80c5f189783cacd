"""The metrics of a model worker: what its jobs waited for, and the counters of its engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from engine import EngineMetrics, ModelInfo
from engine.base.histogram import Distribution
from tasks.base.telemetry.metrics import REGISTRY
from tasks.records.job import Priority

# Bulk jobs wait for hours.
WAITS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
QUEUE_SECONDS = Histogram(
    "medusaq_job_queue_seconds",
    "From a job's creation until the engine admitted it",
    ["priority"],
    buckets=WAITS,
    registry=REGISTRY,
)
FIRST_TOKEN_SECONDS = Histogram(
    "medusaq_job_first_token_seconds",
    "From a job's creation to its first token",
    ["priority"],
    buckets=WAITS,
    registry=REGISTRY,
)
TOTAL_SECONDS = Histogram(
    "medusaq_job_seconds", "From a job's creation to its end", ["priority"], buckets=WAITS, registry=REGISTRY
)
for _priority in Priority:  # they are there before the first job
    for _times in (QUEUE_SECONDS, FIRST_TOKEN_SECONDS, TOTAL_SECONDS):
        _times.labels(_priority)

WINDOWS_TOTAL = Counter(
    "medusaq_windows",
    "Windows of batch lines that this worker no longer holds: completed, or lost to others",
    ["outcome"],
    registry=REGISTRY,
)
for _outcome in ("completed", "lost"):
    WINDOWS_TOTAL.labels(_outcome)
WINDOW_LINES = Histogram(
    "medusaq_window_lines",
    "Lines of a claimed window",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    registry=REGISTRY,
)

# Names in the order in which they are published, what they are, and their values.
ENGINE: tuple[tuple[str, str, Callable[[EngineMetrics], float]], ...] = (
    ("running_requests", "Requests that the engine decodes", lambda m: m.running),
    (
        "waiting_requests",
        "Requests claimed by the worker that the engine has not admitted",
        lambda m: m.waiting,
    ),
    ("kv_cells_used", "Tokens in the KV cache", lambda m: m.kv_cells_used),
    ("steps_total", "Steps of the engine", lambda m: m.steps_total),
    ("step_requests_total", "Requests in the batch, summed over all steps", lambda m: m.step_requests_total),
    ("step_outputs_total", "Requests that got tokens, summed over all steps", lambda m: m.step_outputs_total),
    (
        "batch_occupancy_ratio",
        "Mean share of slots in use at a step, since the start",
        lambda m: m.batch_occupancy,
    ),
    ("generated_tokens_total", "Tokens generated", lambda m: m.generated_tokens_total),
    ("prefill_tokens_total", "Prompt tokens computed", lambda m: m.prefill_tokens_total),
    (
        "prefix_hit_tokens_total",
        "Prompt tokens of ended requests not computed",
        lambda m: m.prefix_hit_tokens_total,
    ),
    ("prompt_tokens_total", "Prompt tokens of ended requests", lambda m: m.prompt_tokens_total),
    ("prefix_hit_ratio", "Share of prompt tokens not computed, since the start", lambda m: m.prefix_hit_rate),
    ("tokens_per_second", "Tokens generated a second, of the last ten seconds", lambda m: m.tokens_per_s),
    ("step_seconds", "Time of a step, smoothed", lambda m: m.step_ms * 1e-3),
    ("failed_decodes_total", "Steps in which llama.cpp failed", lambda m: m.failed_decodes_total),
    ("tokens_per_step", "Mean tokens a request got at a step, since the start", lambda m: m.tokens_per_step),
)


def observe_job(priority: Priority, timing: Mapping[str, Any]) -> None:
    """timing: of a stored result."""
    QUEUE_SECONDS.labels(priority).observe(timing["queue_s"])
    TOTAL_SECONDS.labels(priority).observe(timing["total_s"])
    if timing["first_token_s"] is not None:
        FIRST_TOKEN_SECONDS.labels(priority).observe(timing["first_token_s"])


class EngineCollector(Collector):
    """What an engine says of itself, as families with the name of its model."""

    def __init__(self, model: str, info: ModelInfo, metrics: Callable[[], EngineMetrics]) -> None:
        self._model = model
        self._info = info
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        metrics = self._metrics()
        yield self._single("slots", "Requests that can be decoded together", self._info.slots)
        yield self._single("kv_cells", "Tokens that fit in the KV cache", self._info.kv_cells)
        for name, documentation, value in ENGINE:
            yield self._single(name, documentation, value(metrics))
        if metrics.drafts:
            yield from self._drafts(metrics)
        lengths = HistogramMetricFamily(
            "medusaq_request_tokens_per_step", "Tokens a step of each request", labels=("model",)
        )
        _add(lengths, (self._model,), metrics.request_tokens_per_step)
        yield lengths

    def _single(self, name: str, documentation: str, value: float) -> Metric:
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = kind(f"medusaq_{name.removesuffix('_total')}", documentation, labels=("model",))
        family.add_metric((self._model,), value)
        return family

    def _drafts(self, metrics: EngineMetrics) -> Iterator[Metric]:
        """By their source."""
        labels = ("model", "source")
        verified = CounterMetricFamily(
            "medusaq_verified_tokens", "Draft tokens verified, by their source", labels=labels
        )
        accepted = CounterMetricFamily(
            "medusaq_accepted_tokens", "Draft tokens accepted, by their source", labels=labels
        )
        acceptance = HistogramMetricFamily(
            "medusaq_acceptance_ratio",
            "Share of a request's draft tokens accepted, by their source",
            labels=labels,
        )
        for source, drafts in metrics.drafts.items():
            values = (self._model, source)
            verified.add_metric(values, drafts.verified_tokens_total)
            accepted.add_metric(values, drafts.accepted_tokens_total)
            _add(acceptance, values, drafts.acceptance)
        yield from (verified, accepted, acceptance)


def _add(family: HistogramMetricFamily, labels: tuple[str, ...], values: Distribution) -> None:
    bounds = [*(str(float(bound)) for bound in values.bounds), "+Inf"]
    family.add_metric(labels, list(zip(bounds, values.counts, strict=True)), values.sum)
