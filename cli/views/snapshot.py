"""The data of `medusaq top`: the queues, workers and batches of a gateway at one moment."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cli.gateway.client import call, text

PRIORITIES = ("interactive", "bulk")
MOST_BATCHES = 50  # newest batches that are searched for unfinished ones
WINDOWS_OF = 4  # of these the windows are read

Labelled = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True)
class Snapshot:
    """at: on the monotonic clock. samples: of /metrics, without names of workers."""

    at: float
    samples: Mapping[Labelled, float]
    models: Sequence[Mapping[str, Any]]
    batches: Sequence[Mapping[str, Any]]  # under way
    windows: Sequence[Mapping[str, Any]] = ()  # that run, of some of these

    def value(self, name: str, **labels: str) -> float:
        """The value of a metric, 0 if it is missing."""
        return self.samples.get((f"medusaq_{name}", frozenset(labels.items())), 0.0)

    def waiting_by_model(self, priority: str) -> list[tuple[str, float]]:
        """Models that jobs of a priority wait for, and how many."""
        found = [
            (dict(labels)["model"], count)
            for (name, labels), count in self.samples.items()
            if name == "medusaq_model_queue_jobs" and ("priority", priority) in labels and count
        ]
        return sorted(found)

    @property
    def waited_for(self) -> set[str]:
        """Models that jobs wait for."""
        return {model for priority in PRIORITIES for model, _ in self.waiting_by_model(priority)}

    def waiting_for(self, model: str) -> tuple[int, float]:
        """How many jobs wait for a model, and how long the oldest of them has (s)."""
        names = ("model_queue_jobs", "model_queue_oldest_seconds")
        jobs, ages = (
            [self.value(name, model=model, priority=priority) for priority in PRIORITIES] for name in names
        )
        return int(sum(jobs)), max(ages)

    @property
    def redis_up(self) -> bool:
        return self.value("redis_up") == 1

    @property
    def ended(self) -> float:
        """Number of jobs that have ended."""
        return sum(count for (name, _), count in self.samples.items() if name == "medusaq_jobs_ended_total")

    @property
    def workers(self) -> list[tuple[str, Mapping[str, Any]]]:
        """(model name, worker details from /v1/models) for each worker."""
        return [(model["id"], worker) for model in self.models for worker in model["workers_detail"]]


@dataclass(frozen=True)
class Speeds:
    """Rates of change between two snapshots; empty for the first one."""

    jobs_per_s: float | None = None
    lines_per_s: Mapping[str, float] = field(default_factory=dict)  # by batch

    @classmethod
    def between(cls, before: Snapshot | None, after: Snapshot) -> Speeds:
        if before is None or after.at <= before.at or not (before.redis_up and after.redis_up):
            return cls()
        passed = after.at - before.at
        earlier = {batch["id"]: done(batch) for batch in before.batches}
        lines = {b["id"]: (done(b) - earlier[b["id"]]) / passed for b in after.batches if b["id"] in earlier}
        return cls(max(0.0, after.ended - before.ended) / passed, lines)


def take_snapshot(url: str) -> Snapshot:
    """Query a gateway. Raises GatewayUnreachable and GatewayError."""
    from prometheus_client.parser import text_string_to_metric_families

    samples = {
        (s.name, frozenset((k, v) for k, v in s.labels.items() if k != "worker")): s.value
        for family in text_string_to_metric_families(text(url, "/metrics"))
        for s in family.samples
    }
    found = Snapshot(time.monotonic(), samples, (), ())
    if not found.redis_up:
        return found
    models = call(url, "GET", "/v1/models")["data"]
    batches = call(url, "GET", "/v1/batches", params={"limit": MOST_BATCHES})["data"]
    from tasks.records.batch import ENDED

    active = [batch for batch in batches if batch["status"] not in ENDED]
    windows = [
        window
        for batch in active[:WINDOWS_OF]
        for window in call(url, "GET", f"/v1/batches/{batch['id']}/windows")["data"]
        if window["status"] == "running"
    ]
    return Snapshot(found.at, samples, models, active, windows)


def done(batch: Mapping[str, Any]) -> int:
    """Lines that have ended."""
    counts = batch["request_counts"]
    return int(counts["completed"]) + int(counts["failed"])
