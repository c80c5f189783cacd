"""Engines that measure what is fastest, and what they answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine import Completion, EngineConfig
from engine.host.idle_time import Piece
from engine.llama.model import Model
from engine.service import EngineService
from engine.weights import format_selection
from engine.weights.format_selection import Timing
from tests.engine.helpers.drive import completions, opened, request, run
from tests.support.workers import wait_until

FAST, SLOW = Timing(1.0, 1.0, 0.1, slots=2), Timing(1.0, 8.0, 0.5, slots=2)
ANSWERED_S = 60  # generous: a failing test ends after that


def config(model: str, **changes: object) -> EngineConfig:
    return EngineConfig(**{"model": model, "slots": 2, "kv_cells": 512, **changes})  # type: ignore[arg-type]


Start = Callable[[EngineConfig], EngineService]


def answer(service: EngineService, name: str = "r", **sampling: object) -> Completion:
    return service.submit(request(name, "Tell me a story", **sampling)).result(ANSWERED_S)


def measured(service: EngineService) -> None:
    wait_until(lambda: not service.info.measuring, ANSWERED_S)


def reference(model: str, weights: str, **changes: object) -> Completion:
    engine = opened(config(model, weights=weights, **changes))
    return completions(run(engine, [request("r", "Tell me a story")]))["r"]


def as_timed(monkeypatch: pytest.MonkeyPatch, shipped: Timing, bf16: Timing) -> None:
    def time_formats(_models: list[Model], _config: EngineConfig, piece: Piece) -> list[Timing]:
        with piece():
            return [shipped, bf16]

    monkeypatch.setattr(format_selection, "time_formats", time_formats)
