"""An engine for a model that cannot be loaded: every request fails at once with the reason."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path

from engine.base.config import EngineConfig
from engine.base.errors import ModelLoadError
from engine.base.request import Completion, OnText, Progress, Request
from engine.core.engine import ModelInfo
from engine.serving.metrics import EngineMetrics, Metrics

FACTORY = "engine.tools.failing_engine:load"
REASON = "MEDUSAQ_REFUSAL"  # variable with the reason, set by the supervisor that saw loading fail


class FailingService:
    """Has the surface of EngineService."""

    def __init__(self, config: EngineConfig, reason: str) -> None:
        path = config.model or ""
        self._reason = reason
        self._metrics = Metrics(config.slots)
        self.info = ModelInfo(
            name=Path(path).stem,
            path=path,
            context_length=config.kv_cells,
            slots=config.slots,
            kv_cells=config.kv_cells,
            batch_invariant=config.batch_invariant,
            quantization="cannot be loaded",
        )

    def submit(self, request: Request, on_text: OnText | None = None) -> Future[Completion]:  # noqa: ARG002
        future: Future[Completion] = Future()
        future.set_exception(ModelLoadError(self._reason))
        return future

    def listen(self, request_id: str, on_text: OnText) -> bool:  # noqa: ARG002
        return False

    def cancel(self, request_id: str) -> bool:  # noqa: ARG002
        return False

    def progress(self, request_ids: Iterable[str]) -> Progress:  # noqa: ARG002
        return Progress(0, 0)

    def metrics(self) -> EngineMetrics:
        return self._metrics.snapshot()

    def close(self) -> None:
        """Nothing is held."""


def load(config: EngineConfig) -> FailingService:
    """The factory."""
    return FailingService(config, os.environ.get(REASON, "the model cannot be loaded"))
