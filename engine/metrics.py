"""Counters of one engine, kept around the step and read by any thread."""

from __future__ import annotations

import time
from collections import deque

from engine.engine import StepReport
from engine.request import Completion

SPEED_WINDOW_S = 10.0  # tokens_per_s looks back this far: steady to the eye, fresh enough to act on
_STEP_SMOOTHING = 0.05  # weight of the newest step in step_ms


class Metrics:
    """Sums since the start, and the speed of the last seconds."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._steps = 0
        self._running_sum = 0
        self._generated = 0
        self._prefilled = 0
        self._hits = 0
        self._prompt = 0
        self._failed = 0
        self._step_ms = 0.0
        self._recent: deque[tuple[float, int]] = deque()

    def observe(self, report: StepReport, seconds: float) -> None:
        """Count one step that decoded something, and the completions that it ended."""
        if report.rows:
            self._steps += 1
            self._running_sum += report.running
            self._generated += report.emitted
            self._prefilled += report.rows - report.emitted
            self._failed += report.failed
            self._step_ms += (_STEP_SMOOTHING if self._steps > 1 else 1.0) * (seconds * 1e3 - self._step_ms)
            self._recent.append((time.monotonic(), report.emitted))
        for ended in report.ended:
            if isinstance(ended.outcome, Completion):
                self._hits += ended.outcome.cached_tokens
                self._prompt += ended.outcome.prompt_tokens

    def snapshot(self) -> dict[str, float]:
        oldest = time.monotonic() - SPEED_WINDOW_S
        recent = [(at, n) for at, n in tuple(self._recent) if at >= oldest]
        while self._recent and self._recent[0][0] < oldest:
            self._recent.popleft()
        return {
            "steps_total": self._steps,
            "batch_occupancy": self._running_sum / (self._steps * self._slots) if self._steps else 0.0,
            "generated_tokens_total": self._generated,
            "prefill_tokens_total": self._prefilled,
            "prefix_hit_tokens_total": self._hits,
            "prompt_tokens_total": self._prompt,
            "prefix_hit_rate": self._hits / self._prompt if self._prompt else 0.0,
            "tokens_per_s": sum(n for _, n in recent) / SPEED_WINDOW_S,
            "step_ms": self._step_ms,
            "failed_decodes_total": self._failed,
        }
