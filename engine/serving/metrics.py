"""Counters of one engine: written by its thread after each step, read by any thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

from engine.base.histogram import Distribution, Histogram
from engine.base.request import Completion, Drafted
from engine.core.engine import StepReport

SPEED_WINDOW_S = 10.0  # tokens_per_s looks back this far: steady to the eye, fresh enough to act on
LENGTH_BOUNDS = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0)  # tokens a step: 1 for a request without drafts
ACCEPTANCE_BOUNDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_STEP_SMOOTHING = 0.05  # weight of the newest step in step_ms


@dataclass(frozen=True, slots=True)
class DraftMetrics:
    """Draft tokens of one source. acceptance: distribution over requests of the accepted share."""

    verified_tokens_total: int
    accepted_tokens_total: int
    acceptance: Distribution


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Metrics of one engine: current gauges, and counters and means since the start.

    tokens_per_s: over the last SPEED_WINDOW_S. step_ms: exponentially smoothed. step_requests_total,
    step_outputs_total: requests in the batch, and those that got tokens, summed over all steps.
    prompt_tokens_total, prefix_hit_tokens_total: of ended requests. drafts: by name of the source.
    """

    running: int
    waiting: int
    kv_cells_used: int
    steps_total: int
    step_requests_total: int
    step_outputs_total: int
    batch_occupancy: float
    generated_tokens_total: int
    prefill_tokens_total: int
    prefix_hit_tokens_total: int
    prompt_tokens_total: int
    prefix_hit_rate: float
    tokens_per_s: float
    step_ms: float
    failed_decodes_total: int
    tokens_per_step: float
    request_tokens_per_step: Distribution
    drafts: dict[str, DraftMetrics]


class Metrics:
    """Accumulates step reports; snapshot() is thread-safe."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._steps = 0
        self._running_sum = 0
        self._generated = 0
        self._prefilled = 0
        self._ready_sum = 0
        self._drafted: dict[str, Drafted] = {}
        self._lengths = Histogram(LENGTH_BOUNDS)
        self._acceptance: dict[str, Histogram] = {}
        self._hits = 0
        self._prompt = 0
        self._failed = 0
        self._step_ms = 0.0
        self._recent: deque[tuple[float, int]] = deque()
        self._reading = threading.Lock()

    def observe(self, report: StepReport, seconds: float) -> None:
        """Count one step that decoded something, and the completions that it ended."""
        if report.rows:
            self._steps += 1
            self._running_sum += report.running
            self._generated += report.emitted
            self._prefilled += report.prompt_rows
            self._ready_sum += report.ready
            self._failed += report.failed
            self._step_ms += (_STEP_SMOOTHING if self._steps > 1 else 1.0) * (seconds * 1e3 - self._step_ms)
            self._recent.append((time.monotonic(), report.emitted))
        for ended in report.ended:
            if isinstance(ended.outcome, Completion):
                self._hits += ended.outcome.cached_tokens
                self._prompt += ended.outcome.prompt_tokens
                self._lengths.observe(ended.outcome.tokens_per_step)
                for source, drafted in ended.outcome.drafted.items():
                    own = self._acceptance.setdefault(source, Histogram(ACCEPTANCE_BOUNDS))
                    own.observe(drafted.accepted / drafted.verified)
                    self._drafted[source] = self._drafted.get(source, Drafted(0, 0)) + drafted

    def _speed(self) -> float:
        """Tokens a second over the last SPEED_WINDOW_S."""
        oldest = time.monotonic() - SPEED_WINDOW_S
        with self._reading:
            while self._recent and self._recent[0][0] < oldest:
                self._recent.popleft()
            return sum(n for _, n in tuple(self._recent)) / SPEED_WINDOW_S

    def snapshot(self, *, running: int = 0, waiting: int = 0, kv_cells_used: int = 0) -> EngineMetrics:
        """The metrics now. The arguments are gauges that only the engine knows."""
        return EngineMetrics(
            running=running,
            waiting=waiting,
            kv_cells_used=kv_cells_used,
            steps_total=self._steps,
            step_requests_total=self._running_sum,
            step_outputs_total=self._ready_sum,
            batch_occupancy=self._running_sum / (self._steps * self._slots) if self._steps else 0.0,
            generated_tokens_total=self._generated,
            prefill_tokens_total=self._prefilled,
            prefix_hit_tokens_total=self._hits,
            prompt_tokens_total=self._prompt,
            prefix_hit_rate=self._hits / self._prompt if self._prompt else 0.0,
            tokens_per_s=self._speed(),
            step_ms=self._step_ms,
            failed_decodes_total=self._failed,
            tokens_per_step=self._generated / self._ready_sum if self._ready_sum else 0.0,
            request_tokens_per_step=self._lengths.distribution(),
            drafts={
                name: DraftMetrics(drafted.verified, drafted.accepted, self._acceptance[name].distribution())
                for name, drafted in tuple(self._drafted.items())
            },
        )
