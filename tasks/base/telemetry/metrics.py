"""Prometheus metrics of a process. Workers write theirs to Redis; gateways serve those of all processes.

Every metric that is registered with REGISTRY, in any process, appears on /metrics. Names carry their unit,
and labels take few values: never ids, keys or text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import Metric

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter

REGISTRY = CollectorRegistry()
REDIS_SECONDS = Histogram(
    "medusaq_redis_seconds",
    "One exchange with Redis, answered or not",
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 3.0),
    registry=REGISTRY,
)
REDIS_FAILURES = Counter("medusaq_redis_failures", "Exchanges with Redis that failed", registry=REGISTRY)


@contextmanager
def timing_redis() -> Iterator[None]:
    """Observe the duration of the block, and count a failure if it raises."""
    began = time.perf_counter()
    try:
        with REDIS_FAILURES.count_exceptions():
            yield
    finally:
        REDIS_SECONDS.observe(time.perf_counter() - began)


@dataclass(frozen=True, slots=True)
class ProcessMetrics:
    """The metric families of one process. service: its kind, such as worker or io."""

    service: str
    worker: str
    families: tuple[Metric, ...]

    @classmethod
    def own(cls, service: str, worker: str) -> ProcessMetrics:
        """Collect the metrics of this process."""
        return cls(service, worker, tuple(REGISTRY.collect()))

    def labelled(self) -> Iterator[Metric]:
        """The families, each sample with the worker's name."""
        for family in self.families:
            labelled = Metric(family.name, family.documentation, family.type)
            for sample in family.samples:
                labelled.add_sample(sample.name, {"worker": self.worker, **sample.labels}, sample.value)
            yield labelled

    def to_json(self) -> str:
        """Serialize to JSON."""
        families = [
            [f.name, f.documentation, f.type, [[s.name, s.labels, s.value] for s in f.samples]]
            for f in self.families
        ]
        return json.dumps({"service": self.service, "worker": self.worker, "families": families})

    @classmethod
    def from_json(cls, text: str) -> ProcessMetrics:
        """Parse the output of to_json()."""
        record = json.loads(text)
        families = []
        for name, documentation, kind, samples in record["families"]:
            families.append(family := Metric(name, documentation, kind))
            for sample, labels, value in samples:
                family.add_sample(sample, labels, value)
        return cls(record["service"], record["worker"], tuple(families))
