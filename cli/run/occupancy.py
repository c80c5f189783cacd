"""What /v1/models says of the model workers during a run: batch occupancy, and whether one measures first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


class WorkerOccupancy:
    """Counters of each worker when first and last seen: workers come and go during a run."""

    def __init__(self) -> None:
        self.slots = 0  # of all workers together
        self.measuring = False  # whether one measured first, at the beginning, how it runs fastest
        self._first: dict[str, dict[str, float]] = {}
        self._last: dict[str, dict[str, float]] = {}

    def begin(self, models: Sequence[dict[str, Any]]) -> None:
        """models: the data of /v1/models, here and in update."""
        self.slots = sum(int(model["slots"]) for model in models)
        self.measuring = any(one.get("measuring") and not _steps(one["metrics"]) for one in _workers(models))
        self._first = dict(self._note(models))

    def update(self, models: Sequence[dict[str, Any]]) -> None:
        for worker_id, _ in self._note(models):
            self._first.setdefault(worker_id, {})  # it started during the run, so its counters started at 0

    def occupancy(self) -> float | None:
        """Mean running requests a step, over slots, of the steps during the run; None if there were none."""
        steps = occupied = 0.0
        for worker_id, last in self._last.items():
            first = self._first[worker_id]
            steps += _steps(last) - _steps(first)
            occupied += _occupied(last) - _occupied(first)
        return occupied / steps if steps > 0 else None

    def _note(self, models: Sequence[dict[str, Any]]) -> Iterator[tuple[str, dict[str, float]]]:
        for worker in _workers(models):
            self._last[worker["id"]] = worker["metrics"]
            yield worker["id"], worker["metrics"]


def _workers(models: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (worker for model in models for worker in model.get("workers_detail", []))


def _steps(metrics: dict[str, float]) -> float:
    return metrics.get("steps_total", 0.0)


def _occupied(metrics: dict[str, float]) -> float:
    """The mean is over all steps of the worker's life, so that this is a counter."""
    return metrics.get("batch_occupancy", 0.0) * _steps(metrics)
