"""`/metrics`: what the live workers say of their engines, for Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from api.gateway import GatewayDep
from tasks.registry import WorkerInfo

router = APIRouter(tags=["system"])

LABELS = ("worker", "model")
BY_SOURCE = re.compile(r"(verified|accepted)_(\w+)_tokens_total|(acceptance)_(\w+)_(bucket_[\d.a-z]+|sum)")
HISTOGRAM = re.compile(r"(\w+)_(?:bucket_([\d.]+|inf)|(sum))")


@router.get("/metrics", response_class=Response)
async def metrics(gateway: GatewayDep) -> Response:
    """Counters, gauges and histograms of every live worker, in the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(_Workers(await run_in_threadpool(gateway.workers)))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class _Workers(Collector):
    """The workers' metrics as families: one for each name, with a sample for each worker."""

    def __init__(self, workers: Iterable[WorkerInfo]) -> None:
        self._workers = tuple(workers)

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        histograms: dict[tuple[str, tuple[str, ...]], dict[str, float]] = {}
        for worker in self._workers:
            labels = (worker.id, worker.model)
            for key, value in worker.metrics.items():
                name, own = _split(key)
                if match := HISTOGRAM.fullmatch(name):
                    bound = match[2] or match[3]
                    histograms.setdefault((match[1], (*labels, *own)), {})[bound] = value
                else:
                    _sample(families, name, (*labels, *own), value)
        for (name, own_labels), values in histograms.items():
            _histogram(families, name, own_labels, values)
        yield from families.values()


def _split(key: str) -> tuple[str, tuple[str, ...]]:
    """The name without the draft source, which becomes a label."""
    match = BY_SOURCE.fullmatch(key)
    if match is None:
        return key, ()
    verb, source, acceptance, of, rest = match.groups()
    return (f"{verb}_tokens_total", (source,)) if verb else (f"{acceptance}_{rest}", (of,))


def _labels(values: tuple[str, ...]) -> tuple[str, ...]:
    return (*LABELS, "source")[: len(values)]


def _sample(families: dict[str, Metric], name: str, labels: tuple[str, ...], value: float) -> None:
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    full = "medusaq_" + name.removesuffix("_total")
    if full not in families:
        families[full] = kind(full, name.replace("_", " "), labels=_labels(labels))
    family = families[full]
    assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
    family.add_metric(labels, value)


def _histogram(
    families: dict[str, Metric], name: str, labels: tuple[str, ...], values: dict[str, float]
) -> None:
    full = f"medusaq_{name}"
    if full not in families:
        families[full] = HistogramMetricFamily(full, name.replace("_", " "), labels=_labels(labels))
    family = families[full]
    assert isinstance(family, HistogramMetricFamily)
    bounds = sorted((bound for bound in values if bound != "sum"), key=float)
    buckets = [("+Inf" if bound == "inf" else str(float(bound)), values[bound]) for bound in bounds]
    family.add_metric(labels, buckets, values.get("sum", 0.0))
