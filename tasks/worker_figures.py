"""The figures of a model worker: what its jobs waited for, and the counters of its engine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tasks.figures import REGISTRY
from tasks.job import Priority

WAITS = (
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    300,
    1800,
    7200,
)  # bulk jobs wait for hours
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

# The engine's names, where Prometheus's differ: the name, what its value is multiplied with, what it is.
ENGINE = {
    "running": ("running_requests", 1, "Requests that the engine decodes"),
    "waiting": ("waiting_requests", 1, "Requests claimed by the worker that the engine has not admitted"),
    "slots": ("slots", 1, "Requests that can be decoded together"),
    "kv_cells": ("kv_cells", 1, "Tokens that fit in the KV cache"),
    "kv_cells_used": ("kv_cells_used", 1, "Tokens in the KV cache"),
    "steps_total": ("steps_total", 1, "Steps of the engine"),
    "step_requests_total": ("step_requests_total", 1, "Requests in the batch, summed over all steps"),
    "step_outputs_total": ("step_outputs_total", 1, "Requests that got tokens, summed over all steps"),
    "batch_occupancy": ("batch_occupancy_ratio", 1, "Mean share of slots in use at a step, since the start"),
    "generated_tokens_total": ("generated_tokens_total", 1, "Tokens generated"),
    "prefill_tokens_total": ("prefill_tokens_total", 1, "Prompt tokens computed"),
    "prompt_tokens_total": ("prompt_tokens_total", 1, "Prompt tokens of ended requests"),
    "prefix_hit_tokens_total": ("prefix_hit_tokens_total", 1, "Prompt tokens of ended requests not computed"),
    "prefix_hit_rate": ("prefix_hit_ratio", 1, "Share of prompt tokens not computed, since the start"),
    "tokens_per_s": ("tokens_per_second", 1, "Tokens generated a second, of the last ten seconds"),
    "tokens_per_step": ("tokens_per_step", 1, "Mean tokens a request got at a step, since the start"),
    "step_ms": ("step_seconds", 1e-3, "Time of a step, smoothed"),
    "failed_decodes_total": ("failed_decodes_total", 1, "Steps in which llama.cpp failed"),
    "verified_tokens_total": ("verified_tokens_total", 1, "Draft tokens verified, by their source"),
    "accepted_tokens_total": ("accepted_tokens_total", 1, "Draft tokens accepted, by their source"),
    "acceptance": ("acceptance_ratio", 1, "Share of a request's draft tokens accepted, by their source"),
    "request_tokens_per_step": ("request_tokens_per_step", 1, "Tokens a step of each request"),
}
BY_SOURCE = re.compile(r"(verified|accepted)_(\w+)_tokens_total|(acceptance)_(\w+)_(bucket_[\d.a-z]+|sum)")
HISTOGRAM = re.compile(r"(\w+)_(?:bucket_([\d.]+|inf)|(sum))")


def observe_job(priority: Priority, timing: Mapping[str, Any]) -> None:
    """timing: of a stored result."""
    QUEUE_SECONDS.labels(priority).observe(timing["queue_s"])
    TOTAL_SECONDS.labels(priority).observe(timing["total_s"])
    if timing["first_token_s"] is not None:
        FIRST_TOKEN_SECONDS.labels(priority).observe(timing["first_token_s"])


class EngineCollector(Collector):
    """What an engine says of itself, as families with the name of its model."""

    def __init__(self, model: str, metrics: Callable[[], Mapping[str, float]]) -> None:
        self._model = model
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        histograms: dict[tuple[str, tuple[str, ...]], dict[str, float]] = {}
        for key, value in self._metrics().items():
            name, source = _split(key)
            if match := HISTOGRAM.fullmatch(name):
                bound = match[2] or match[3]
                histograms.setdefault((match[1], source), {})[bound] = value
            else:
                self._add_sample(families, name, source, value)
        for (name, source), values in histograms.items():
            self._add_histogram(families, name, source, values)
        yield from families.values()

    def _add_sample(
        self, families: dict[str, Metric], name: str, source: tuple[str, ...], value: float
    ) -> None:
        full, factor, documentation = _named(name)
        kind = CounterMetricFamily if full.endswith("_total") else GaugeMetricFamily
        full = full.removesuffix("_total")
        family = families.setdefault(full, kind(full, documentation, labels=_labels(source)))
        assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
        family.add_metric((self._model, *source), value * factor)

    def _add_histogram(
        self, families: dict[str, Metric], name: str, source: tuple[str, ...], values: dict[str, float]
    ) -> None:
        full, _, documentation = _named(name)
        family = families.setdefault(full, HistogramMetricFamily(full, documentation, labels=_labels(source)))
        assert isinstance(family, HistogramMetricFamily)
        bounds = sorted((bound for bound in values if bound != "sum"), key=float)
        buckets = [("+Inf" if bound == "inf" else str(float(bound)), values[bound]) for bound in bounds]
        family.add_metric((self._model, *source), buckets, values.get("sum", 0.0))


def _named(key: str) -> tuple[str, float, str]:
    name, factor, documentation = ENGINE.get(key, (key, 1, key.replace("_", " ")))
    return f"medusaq_{name}", factor, documentation


def _split(key: str) -> tuple[str, tuple[str, ...]]:
    """The name without the draft source, which becomes a label."""
    match = BY_SOURCE.fullmatch(key)
    if match is None:
        return key, ()
    verb, source, acceptance, of, rest = match.groups()
    return (f"{verb}_tokens_total", (source,)) if verb else (f"{acceptance}_{rest}", (of,))


def _labels(source: tuple[str, ...]) -> tuple[str, ...]:
    return ("model", "source")[: 1 + len(source)]
