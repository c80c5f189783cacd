"""Totals over the results of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cli.run import result_lines

CUT = "length"  # finish_reason
STOPPED = {"batch_cancelled": "cancelled", "batch_expired": "expired"}


@dataclass
class Totals:
    """Requests, failures by code, and tokens. stopped: requests without an answer that did not fail, by why.

    cut: answers that max_tokens cut off, failures not counted.
    """

    requests: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    stopped: Counter[str] = field(default_factory=Counter)
    cut: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    stepped_tokens: int = 0  # generated in these steps

    @property
    def failed(self) -> int:
        return self.failures.total()

    @property
    def unanswered(self) -> int:
        return self.failed + self.stopped.total()

    @property
    def tokens_per_step(self) -> float | None:
        """None if no result has its number of steps, as those of older workers."""
        return self.stepped_tokens / self.steps if self.steps else None

    def add(self, result: Mapping[str, Any]) -> None:
        """Count one line of the results file."""
        self.requests += 1
        if (code := result_lines.error_code(result)) is not None:
            if (how := STOPPED.get(code)) is not None:
                self.stopped[how] += 1
            else:
                self.failures[code] += 1
            return
        body = result["response"]["body"]
        self.cut += body["choices"][0]["finish_reason"] == CUT
        usage = body["usage"]
        self.prompt_tokens += usage["prompt_tokens"]
        self.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
        self.generated_tokens += usage["completion_tokens"]
        if (speculation := body.get("speculation")) is not None:
            self.steps += speculation["steps"]
            self.stepped_tokens += usage["completion_tokens"]
